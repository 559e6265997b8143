// What of libtorch's operators a device must have of its own: those that allocate, copy, and make
// views. All others go to the fallback.
#include <cstring>
#include <future>
#include <memory>

#include "ATen/ATen.h"
#include "ATen/EmptyTensor.h"
#include "ATen/ops/_reshape_alias_native.h"
#include "ATen/ops/as_strided_native.h"
#include "ATen/ops/set_native.h"
#include "ATen/ops/view_native.h"
#include "torch/library.h"
#include "torch/version.h"
#if TORCH_VERSION_MAJOR >= 2
#include "ATen/autocast_mode.h"
#endif
#include "worker_runtime/torch/pretend_device/copies.h"
#include "worker_runtime/torch/pretend_device/fallback.h"
#include "worker_runtime/torch/pretend_device/guard.h"
#include "worker_runtime/torch/pretend_device/memory.h"
#include "worker_runtime/torch/pretend_device/optional.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/pretend_device/queue.h"
#include "worker_runtime/torch/pretend_device/streams.h"

namespace cadre::pretend {
namespace {

using at::Tensor;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceIndex IndexOf(Optional<c10::Device> device) {
  return !device || device->index() < 0 ? CurrentDevice() : device->index();
}

Tensor Empty(at::IntArrayRef sizes, Optional<at::ScalarType> type, Optional<at::Layout>,
             Optional<c10::Device> device, Optional<bool>, Optional<at::MemoryFormat> format) {
  const DeviceSwitch on(IndexOf(device));
  return at::detail::empty_generic(sizes, DeviceAllocator(), kKeys, c10::dtype_or_default(type),
                                   format);
}

Tensor EmptyStrided(at::IntArrayRef sizes, at::IntArrayRef strides, Optional<at::ScalarType> type,
                    Optional<at::Layout>, Optional<c10::Device> device, Optional<bool>) {
  const DeviceSwitch on(IndexOf(device));
  return at::detail::empty_strided_generic(sizes, strides, DeviceAllocator(), kKeys,
                                           c10::dtype_or_default(type));
}

at::Scalar LocalScalar(const Tensor& tensor) {
  const Tensor host = at::empty({}, at::TensorOptions().dtype(tensor.dtype()));
  CopyFrom(tensor, host, /*non_blocking=*/false);
  return host.item();
}

Tensor CopyFromAndResize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  CopyFrom(source, target, /*non_blocking=*/false);
  return target;
}

const Tensor& Resize(const Tensor& tensor, at::IntArrayRef sizes, Optional<at::MemoryFormat>) {
  const int64_t elements = tensor.storage_offset() + c10::multiply_integers(sizes);
  const size_t bytes = static_cast<size_t>(elements) * tensor.dtype().itemsize();
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    const DeviceSwitch on(tensor.device().index());
    c10::DataPtr larger = AllocateOnDevice(bytes);
    if (storage->nbytes() > 0) {
      CurrentQueue(CurrentDevice())
          .Push([to = AsDeviceSeesIt(larger.get()),
                 from = AsDeviceSeesIt(tensor.storage().data_ptr().get()),
                 count = storage->nbytes()] { std::memcpy(to, from, count); });
    }
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

Tensor AsStrided(const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                 Optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

// Lets Module::to(device) keep its parameters' tensors and change what they hold.
bool HasCompatibleShallowCopyType(const Tensor&, const Tensor&) { return true; }

bool IsPinnedTensor(const Tensor& tensor, Optional<c10::Device>) {
  return IsPinned(tensor.data_ptr());
}

Tensor PinMemoryOf(const Tensor& tensor, Optional<c10::Device>) { return PinMemory(tensor); }

void RecordStream(Tensor& tensor, c10::Stream stream) {
  UsedOn(tensor.storage().data_ptr().get(), QueueOf(stream));
}

#if TORCH_VERSION_MAJOR < 2
// Later releases have a fallback of autograd's for this key.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
#else
// As a device's own library does it: what is computed in 16 bits under autocast, and all the rest.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp);
}
#endif

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("_local_scalar_dense", &LocalScalar);
  m.impl("resize_", &Resize);
  m.impl("as_strided", &AsStrided);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("_has_compatible_shallow_copy_type", &HasCompatibleShallowCopyType);
  m.impl("is_pinned", &IsPinnedTensor);
  m.impl("_pin_memory", &PinMemoryOf);
  m.impl("record_stream", &RecordStream);
}

}  // namespace

void Install(int devices) {
  // The device must be there before the first backward pass: 1.13 counts autograd's threads then.
  static const bool installed = [devices] {
    MakeDevices(devices);
    RegisterGuard();
    return true;
  }();
  (void)installed;
}

c10::Device Device(int index) { return {kPretend, static_cast<c10::DeviceIndex>(index)}; }

at::Tensor PinMemory(const at::Tensor& tensor) {
  return at::Tensor(at::detail::empty_strided_generic(
                        tensor.sizes(), tensor.strides(), PinnedAllocator(),
                        c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.scalar_type()))
      .copy_(tensor);
}

void Hold(c10::Stream stream, bool hold) { QueueOf(stream).Hold(hold); }

uint64_t JobsDone(c10::Stream stream) { return QueueOf(stream).done(); }

std::shared_future<double> TimeAt(c10::Stream stream) {
  const auto time = std::make_shared<std::promise<double>>();
  Queue& queue = QueueOf(stream);
  queue.Push([time, &queue] { time->set_value(queue.now()); });
  return time->get_future().share();
}

uint64_t HostWaits(c10::Device device) { return HostWaits(device.index()); }

}  // namespace cadre::pretend
