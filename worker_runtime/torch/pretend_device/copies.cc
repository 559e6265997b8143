#include "worker_runtime/torch/pretend_device/copies.h"

#include "ATen/ATen.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "worker_runtime/torch/pretend_device/costs.h"
#include "worker_runtime/torch/pretend_device/memory.h"
#include "worker_runtime/torch/pretend_device/queue.h"
#include "worker_runtime/torch/pretend_device/streams.h"

namespace cadre::pretend {

bool IsOnDevice(const at::Tensor& tensor) { return tensor.device().type() == kPretend; }

size_t BytesOnDevice(const at::Tensor& tensor) {
  if (!tensor.defined() || !IsOnDevice(tensor)) return 0;
  return static_cast<size_t>(tensor.numel()) * tensor.dtype().itemsize();
}

at::Tensor AsDeviceSeesIt(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.dtype());
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(AsDeviceSeesIt(tensor.data_ptr()), tensor.sizes(), tensor.strides(),
                       options);
}

at::Tensor CopyFrom(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const bool reads = IsOnDevice(source), writes = IsOnDevice(target);
  Queue& queue = CurrentQueue((reads ? source : target).device().index());
  at::Tensor from = reads ? AsDeviceSeesIt(source) : source.detach();
  at::Tensor to = writes ? AsDeviceSeesIt(target) : target.detach();
  const double cost = GetCosts().OfOperator(BytesOnDevice(source) + BytesOnDevice(target));
  const auto copy = [&queue, cost](const at::Tensor& a, const at::Tensor& b) {
    const auto job = [a, b] {
      const at::AutoDispatchBelowADInplaceOrView below;
      b.copy_(a);
    };
    queue.Push(job, cost);
  };
  if (reads && writes) {
    // Between devices: behind what the target's stream has been given, and before what it will be.
    Queue& other = CurrentQueue(target.device().index());
    Event before, after;
    before.Record(other);
    before.Block(queue);
    copy(from, to);
    after.Record(queue);
    after.Block(other);
    return target;
  }
  const bool pinned = IsPinned((reads ? target : source).data_ptr());
  // What the device reads of ordinary memory is staged, as drivers do it. Pinned memory is read
  // when the stream comes to it, since an earlier job of the stream may be what fills it.
  const bool staged = !reads && !pinned;
  if (staged) from = from.clone();
  copy(from, to);
  if (!staged && !(pinned && non_blocking)) queue.Synchronize();
  return target;
}

}  // namespace cadre::pretend
