// The pretend GPUs of this process, and what its handles of CUDA's mean. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_DEVICES_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_DEVICES_H_

#include "worker_runtime/testing/pretend_gpu/streams.h"

namespace cadre::pretend_gpu {

// CADRE_PRETEND_GPUS says how many the machine has, 1 where it is unset; 0 is a machine without a
// driver. CUDA_VISIBLE_DEVICES chooses among them by number, as with CUDA.
bool HasDriver();
int DeviceCount();
// Which of the machine's GPUs that is.
int PhysicalDevice(int device);

// Of the calling thread.
int CurrentDevice();
void SetCurrentDevice(int device);

// As handles. What was destroyed, or never made, is null; a null handle is the current device's
// default stream, which other streams do not wait for.
Stream* MakeStream(int device);
Stream* FindStream(const void* handle);
bool DestroyStream(const void* handle);
Event* MakeEvent(int device);
Event* FindEvent(const void* handle);
bool DestroyEvent(const void* handle);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_DEVICES_H_
