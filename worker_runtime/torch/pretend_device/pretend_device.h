// An asynchronous accelerator for tests, without hardware: torch::kPrivateUse1, whose streams are
// threads and whose memory the host must not touch (SIGSEGV where it does). Gradients that were not
// waited for, buffers that were freed or used again early, and reads by the host show as NaN, as a
// wrong sum or as a crash. 1.13's autograd orders no streams but CUDA's: tests with several streams
// need libtorch 2.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_DEVICE_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <future>

#include "c10/core/Device.h"
#include "c10/core/Stream.h"
#include "torch/types.h"

namespace cadre::pretend {

// Before the first tensor of the process; later calls do nothing.
void Install(int devices);
c10::Device Device(int index = 0);

// While a stream is held, none of its jobs begins: for tests that decide what runs first.
void Hold(c10::Stream stream, bool hold);
// How many jobs the stream has done.
uint64_t JobsDone(c10::Stream stream);
// A copy on the host which the device copies to and from while the host goes on.
torch::Tensor PinMemory(const torch::Tensor& tensor);
// Bytes that are allocated on all devices.
size_t LiveBytes();

// The device's own time in which the stream comes to what it is given next, in seconds: see
// costs.h. Known when it has come there.
std::shared_future<double> TimeAt(c10::Stream stream);
// How often the host has waited for one of the device's streams or events, or copied from it to
// ordinary memory, or asked whether a stream or an event is done.
uint64_t HostWaits(c10::Device device);

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_DEVICE_H_
