#include "worker_runtime/torch/device_links.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/nccl/connect.h"
#include "cadre/status_macros.h"
#include "cadre/torch/device_stream.h"
#include "torch/utils.h"
#include "torch/version.h"

namespace cadre::nn {
namespace {

constexpr char kBackendVariable[] = "CADRE_DEVICE_BACKEND";
constexpr char kEncryptVariable[] = "CADRE_ENCRYPT";

// Returns "" for whichever backend is available.
Result<std::string> WantedBackend() {
  const char* const variable = std::getenv(kBackendVariable);
  const std::string backend = variable == nullptr ? "" : variable;
  if (backend.empty() || backend == "nccl" || backend == "host") return backend;
  return InvalidArgumentError(std::string(kBackendVariable) + " is '" + backend +
                              "'; it may be nccl or host, or not be set");
}

// Returns the id of the running kernel's boot, which is the same in all containers of a machine.
std::string ThisMachine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

bool CannotBeConnected(const Status& status) {
  return status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kNotFound ||
         status.code() == StatusCode::kFailedPrecondition;
}

void PrintThatHostIsUsed(const Communicator& host, torch::Device device, std::string_view reason) {
  // Only CUDA devices are expected to have NCCL; others get no warning.
  if (host.rank() != 0 || !device.is_cuda()) return;
  std::fprintf(stderr, "cadre: gradients on %s go through the host's memory: %.*s\n",
               device.str().c_str(), static_cast<int>(reason.size()), reason.data());
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectByNccl(Communicator& host, DeviceStream& stream) {
  const torch::Device device = stream.device();
  if (!device.is_cuda()) {
    return UnimplementedError("NCCL connects devices of CUDA's only, and not " + device.str());
  }
  nccl::NcclOptions options;
  options.name = "gradients on " + device.str();
  options.device = device.index();
  CADRE_ASSIGN_OR_RETURN(options.stream, stream.CudaHandle());
  return nccl::ConnectNccl(host, options);
}

Status CheckDevicesMayCrossMachines(Communicator& host, const std::string& machine) {
  const char* const encrypt = std::getenv(kEncryptVariable);
  if (encrypt == nullptr || std::string(encrypt) != "1") return OkStatus();
  uint64_t own = std::hash<std::string>()(machine);
  std::vector<uint64_t> all(static_cast<size_t>(host.size()));
  const size_t bytes = sizeof(own);
  CADRE_RETURN_IF_ERROR(host.AllGather({&own, bytes, DataType::kUint8},
                                       {all.data(), all.size() * bytes, DataType::kUint8})
                            ->Wait(std::chrono::nanoseconds::max()));
  for (const uint64_t other : all) {
    if (other != all[0]) {
      return FailedPreconditionError(
          "NCCL encrypts nothing that it sends between machines, and these ranks are to encrypt "
          "(--encrypt, CADRE_ENCRYPT=1); CADRE_DEVICE_BACKEND=nccl uses it all the same");
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<DeviceLinks>> DeviceLinks::Connect(Communicator& host,
                                                          const std::vector<torch::Tensor>& tensors,
                                                          const ConnectDevice& connect,
                                                          std::string_view why_not) {
  CADRE_ASSIGN_OR_RETURN(const std::string backend, WantedBackend());
  auto links = std::make_unique<DeviceLinks>();
  links->alone_ = connect != nullptr && host.size() == 1;
  Status may_leave;
  const bool connects = connect != nullptr && !links->alone_ && backend != "host";
  if (connects && backend != "nccl") {
    may_leave = CheckDevicesMayCrossMachines(host, ThisMachine());
    if (!may_leave.ok() && !CannotBeConnected(may_leave)) return may_leave;
  }
  for (const torch::Tensor& tensor : tensors) {
    const torch::Device device = tensor.device();
    if (device.is_cpu() || links->Find(device) != nullptr) continue;
    DeviceStream& stream = links->StreamOf(device);
    if (!connects) {
      if (!why_not.empty()) PrintThatHostIsUsed(host, device, why_not);
      continue;
    }
    Result<std::unique_ptr<Communicator>> communicator = may_leave;
    if (may_leave.ok()) communicator = connect(host, stream);
    if (communicator.ok()) {
      links->links_.back().communicator = *std::move(communicator);
      continue;
    }
    if (backend == "nccl" || !CannotBeConnected(communicator.status())) {
      return communicator.status();
    }
    PrintThatHostIsUsed(host, device, communicator.status().message());
  }
  return links;
}

const DeviceLinks::Link* DeviceLinks::Find(torch::Device device) const {
  for (const Link& link : links_) {
    if (link.stream->device() == device) return &link;
  }
  return nullptr;
}

const DeviceLinks::Link& DeviceLinks::FindOrAdd(torch::Device device) {
  const Link* const link = Find(device);
  if (link != nullptr) return *link;
  links_.push_back(
      {std::make_unique<DeviceStream>(device), std::make_unique<DeviceStream>(device), nullptr});
  return links_.back();
}

DeviceStream& DeviceLinks::StreamOf(torch::Device device) { return *FindOrAdd(device).stream; }

DeviceStream& DeviceLinks::CheckStreamOf(torch::Device device) { return *FindOrAdd(device).checks; }

bool DeviceLinks::Reduces(torch::Device device) const {
  return !device.is_cpu() && (alone_ || CommunicatorOf(device) != nullptr);
}

Communicator* DeviceLinks::CommunicatorOf(torch::Device device) const {
  const Link* const link = Find(device);
  return link == nullptr ? nullptr : link->communicator.get();
}

void DeviceLinks::CurrentWaits() const {
  for (const Link& link : links_) link.stream->CurrentWaits();
}

void DeviceLinks::Abort() {
  for (const Link& link : links_) {
    if (link.communicator != nullptr) link.communicator->Abort();
  }
}

namespace {

using c10::impl::VirtualGuardImpl;

// The symbol of c10::cuda::CUDAStream::stream() const. It is looked up in libtorch's CUDA library
// because that library's headers may be missing; a CUDAStream holds nothing but a Stream.
constexpr char kCudaStream[] = "_ZNK3c104cuda10CUDAStream6streamEv";

// Returns a function of CUDA's runtime, which a libtorch with CUDA loads into the process; null if
// it is not loaded.
template <typename Function>
Function* CudaFunction(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

DevicePoint::DevicePoint(c10::Stream stream) : event_(stream.device_type()) {
  event_->record(stream);
}

bool DevicePoint::reached() const { return !event_ || event_->query(); }

void DevicePoint::Block(c10::Stream stream) {
  if (event_) event_->block(stream);
}

DeviceStream::DeviceStream(torch::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ =
      VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

Result<void*> DeviceStream::CudaHandle() const {
  if (!device_.is_cuda()) return InvalidArgumentError(device_.str() + " is not a CUDA device");
  using Handle = void* (*)(const c10::Stream*);
  const auto handle = reinterpret_cast<Handle>(dlsym(RTLD_DEFAULT, kCudaStream));
  if (handle != nullptr) return handle(&*stream_);
  return UnimplementedError("this libtorch does not give access to its CUDA streams");
}

std::optional<c10::Stream> DeviceStream::Current() const {
  if (!stream_) return std::nullopt;
  return VirtualGuardImpl(device_.type()).getStream(device_);
}

void DeviceStream::WaitFor(c10::Stream other) {
  if (stream_) DevicePoint(other).Block(*stream_);
}

void DeviceStream::CurrentWaits() const {
  if (stream_) Here().Block(*Current());
}

DevicePoint DeviceStream::Here() const { return stream_ ? DevicePoint(*stream_) : DevicePoint(); }

void DeviceStream::Synchronize() const {
  if (stream_) VirtualGuardImpl(device_.type()).synchronizeStream(*stream_);
}

void DeviceStream::Uses(const torch::Tensor& tensor) const {
  if (!stream_) return;
  // Tensor::record_stream() is not used because older releases have it for CUDA alone.
  VirtualGuardImpl(device_.type()).recordDataPtrOnStream(tensor.storage().data_ptr(), *stream_);
}

void DeviceStream::CurrentUses(const torch::Tensor& tensor) const {
  if (!stream_) return;
  VirtualGuardImpl(device_.type()).recordDataPtrOnStream(tensor.storage().data_ptr(), *Current());
}

DeviceStream::Scope::Scope(const DeviceStream& stream) {
  if (stream.stream_) guard_.emplace(*stream.stream_);
}

std::shared_ptr<void> Pin(torch::Device device, std::shared_ptr<void> owner, void* memory,
                          size_t bytes) {
  if (!device.is_cuda() || bytes == 0) return nullptr;
  const auto pin = CudaFunction<int(void*, size_t, unsigned)>("cudaHostRegister");
  const auto unpin = CudaFunction<int(void*)>("cudaHostUnregister");
  const auto last_error = CudaFunction<int()>("cudaGetLastError");
  if (pin == nullptr || unpin == nullptr || last_error == nullptr) return nullptr;
  if (pin(memory, bytes, /*flags=*/0) != 0) {
    // Clears the error, which libtorch would otherwise take for its own.
    (void)last_error();
    return nullptr;
  }
  return {memory, [unpin, owner = std::move(owner)](void* pinned) { (void)unpin(pinned); }};
}

torch::Tensor EmptyPinned(torch::Device device, torch::IntArrayRef sizes, torch::ScalarType type) {
  const auto options = torch::TensorOptions().dtype(type).device(torch::kCPU);
  if (device.is_cpu()) return torch::empty(sizes, options);
#if TORCH_VERSION_MAJOR >= 2
  return torch::empty(sizes, options.pinned_memory(true));
#else
  if (device.is_cuda()) return torch::empty(sizes, options.pinned_memory(true));
  return torch::empty(sizes, options).pin_memory(device);
#endif
}

}  // namespace cadre::nn
