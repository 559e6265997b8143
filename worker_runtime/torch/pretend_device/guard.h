// The pretend device as c10 sees every accelerator: devices, streams and events.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_GUARD_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_GUARD_H_

namespace cadre::pretend {

// Once. The devices have been made.
void RegisterGuard();

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_GUARD_H_
