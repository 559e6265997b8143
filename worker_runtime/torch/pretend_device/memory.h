// Memory of the pretend device: tensors hold addresses at which nothing can be read or written, so
// that a touch by the host is a SIGSEGV; the device's threads use the same pages at another
// address. What is new or freed is filled with 0xff, which is NaN in every floating type, in the
// order of the streams that used it.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_MEMORY_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_MEMORY_H_

#include <cstddef>

#include "c10/core/Allocator.h"
#include "worker_runtime/torch/pretend_device/queue.h"

namespace cadre::pretend {

// Of `bytes` bytes, first used on the current stream of the current device.
c10::DataPtr AllocateOnDevice(size_t bytes);
c10::Allocator* DeviceAllocator();
// Memory of the host that the device copies to and from while the host goes on.
c10::Allocator* PinnedAllocator();

// Where the device's threads find what `device_pointer` means. Throws for any other pointer.
char* AsDeviceSeesIt(const void* device_pointer);
bool IsPinned(const void* pointer);
// The memory is used on that queue, too: it is not freed before what was pushed there is done.
void UsedOn(const void* device_pointer, Queue& queue);

// Bytes that are allocated on all devices.
size_t LiveBytes();

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_MEMORY_H_
