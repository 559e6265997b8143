#include "cadre/torch/device_links.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cadre/nccl/connect.h"
#include "cadre/status_macros.h"

namespace cadre::nn {
namespace {

constexpr char kBackendVariable[] = "CADRE_DEVICE_BACKEND";
constexpr char kEncryptVariable[] = "CADRE_ENCRYPT";

// "" is whatever can be.
Result<std::string> WantedBackend() {
  const char* const variable = std::getenv(kBackendVariable);
  const std::string backend = variable == nullptr ? "" : variable;
  if (backend.empty() || backend == "nccl" || backend == "host") return backend;
  return InvalidArgumentError(std::string(kBackendVariable) + " is '" + backend +
                              "'; it may be nccl or host, or not be set");
}

// The running kernel's own name, which is one for all containers of a machine.
std::string ThisMachine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

bool MeansThatThereIsNone(const Status& status) {
  return status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kNotFound ||
         status.code() == StatusCode::kFailedPrecondition;
}

void SayThatTheHostIsTheWay(const Communicator& host, torch::Device device,
                            std::string_view reason) {
  // Devices without NCCL were never meant to have it.
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

Status CheckDevicesMayLeave(Communicator& host, const std::string& machine) {
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
    may_leave = CheckDevicesMayLeave(host, ThisMachine());
    if (!may_leave.ok() && !MeansThatThereIsNone(may_leave)) return may_leave;
  }
  for (const torch::Tensor& tensor : tensors) {
    const torch::Device device = tensor.device();
    if (device.is_cpu() || links->Find(device) != nullptr) continue;
    DeviceStream& stream = links->StreamOf(device);
    if (!connects) {
      if (!why_not.empty()) SayThatTheHostIsTheWay(host, device, why_not);
      continue;
    }
    Result<std::unique_ptr<Communicator>> communicator = may_leave;
    if (may_leave.ok()) communicator = connect(host, stream);
    if (communicator.ok()) {
      links->links_.back().communicator = *std::move(communicator);
      continue;
    }
    if (backend == "nccl" || !MeansThatThereIsNone(communicator.status())) {
      return communicator.status();
    }
    SayThatTheHostIsTheWay(host, device, communicator.status().message());
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

}  // namespace cadre::nn
