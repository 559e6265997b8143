// What the operators of the pretend device share.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_COPIES_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_COPIES_H_

#include <cstddef>

#include "ATen/core/Tensor.h"

namespace cadre::pretend {

bool IsOnDevice(const at::Tensor& tensor);
// Those of its elements; none elsewhere.
size_t BytesOnDevice(const at::Tensor& tensor);
// What a thread of the device sees: a CPU tensor over its memory, which it does not own.
at::Tensor AsDeviceSeesIt(const at::Tensor& tensor);
// aten::_copy_from, between a device and the host or two devices.
at::Tensor CopyFrom(const at::Tensor& source, const at::Tensor& target, bool non_blocking);

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_COPIES_H_
