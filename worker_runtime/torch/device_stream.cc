#include "cadre/torch/device_stream.h"

#include <dlfcn.h>

#include <utility>

#include "c10/core/impl/VirtualGuardImpl.h"
#include "torch/utils.h"
#include "torch/version.h"

namespace cadre::nn {
namespace {

using c10::impl::VirtualGuardImpl;

// c10::cuda::CUDAStream::stream() const, by which libtorch's CUDA library is asked without its
// headers: a CUDAStream is a Stream and nothing else.
constexpr char kCudaStream[] = "_ZNK3c104cuda10CUDAStream6streamEv";

// Of CUDA's runtime, which a libtorch of CUDA's brings into the process; null: it did not.
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
  if (!device_.is_cuda()) return InvalidArgumentError(device_.str() + " is no device of CUDA's");
  using Handle = void* (*)(const c10::Stream*);
  const auto handle = reinterpret_cast<Handle>(dlsym(RTLD_DEFAULT, kCudaStream));
  if (handle != nullptr) return handle(&*stream_);
  return UnimplementedError("this libtorch does not tell its CUDA streams");
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
  // Not Tensor::record_stream(), which is CUDA's alone in older releases.
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
    // Or libtorch would take it for its own.
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
