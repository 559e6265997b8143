// An asynchronous accelerator for tests, without hardware: torch::kPrivateUse1. Its streams are
// threads, and an access of the host to its memory raises SIGSEGV. Gradients that were used before
// they were ready, buffers that were freed or reused too early, and reads by the host show as NaN,
// as a wrong sum or as a crash. Autograd of libtorch 1.13 orders only CUDA's streams, so tests with
// several streams need libtorch 2.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_DEVICE_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <future>

#include "c10/core/Device.h"
#include "c10/core/Stream.h"
#include "torch/types.h"

namespace testing {
class Environment;
}

namespace cadre::pretend {

// Must be called before the process makes its first tensor; later calls do nothing.
void Install(int devices);
// Has a GoogleTest program install the devices before its first test, whichever that is: autograd
// counts devices when it first runs. Called at file scope.
const ::testing::Environment* InstallBeforeTests(int devices);
c10::Device Device(int index = 0);

// While a stream is held, it begins no job; tests use this to choose what runs first.
void Hold(c10::Stream stream, bool hold);
// Returns how many jobs the stream has finished.
uint64_t JobsDone(c10::Stream stream);
// Returns a host copy in pinned memory, which the device can copy to and from asynchronously.
torch::Tensor PinMemory(const torch::Tensor& tensor);
// Returns the bytes that are allocated on all devices.
size_t LiveBytes();

// Returns the simulated time, in seconds, at which the stream reaches the job that is pushed next
// (see queue.h). The future is ready when the stream has got there.
std::shared_future<double> TimeAt(c10::Stream stream);
// Returns how often the host has waited for one of the device's streams or events, copied from the
// device to pageable memory, or polled whether a stream or an event is done.
uint64_t HostWaits(c10::Device device);

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_PRETEND_DEVICE_H_
