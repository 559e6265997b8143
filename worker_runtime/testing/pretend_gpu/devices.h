// The pretend GPUs of this process, and the objects behind its CUDA handles. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_DEVICES_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_DEVICES_H_

#include "worker_runtime/testing/pretend_gpu/memory.h"

namespace cadre::pretend_gpu {

// The operations that this thread's open NCCL group holds back: streams receive them when the group
// is closed.
class Stream;

// HoldInGroup() notes that the group holds an operation for that stream; CloseGroup() forgets them.
void HoldInGroup(const Stream& stream);
void CloseGroup();

// Reports a mistake if `what` is called before operations that the group holds for `stream` (null:
// for any stream) are issued. Returns false if the group holds none.
bool ReportOpenGroup(const Stream* stream, const char* what);

// CADRE_PRETEND_GPUS is the number of the machine's GPUs, 1 if unset; 0 means a machine without a
// driver. CUDA_VISIBLE_DEVICES selects among them by number, as with CUDA.
bool HasDriver();
int DeviceCount();
// Returns the machine's number for this process's `device`.
int PhysicalDevice(int device);

// The current device of the calling thread.
int CurrentDevice();
void SetCurrentDevice(int device);

// The addresses serve as handles. Find...() returns null for a handle that was destroyed or never
// made. A null stream handle is the current device's default stream, for which other streams do not
// wait.
Stream* MakeStream(int device);
Stream* FindStream(const void* handle);
bool DestroyStream(const void* handle);
Event* MakeEvent(int device);
Event* FindEvent(const void* handle);
bool DestroyEvent(const void* handle);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_DEVICES_H_
