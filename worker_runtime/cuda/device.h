// Devices, memory, streams and events of CUDA, as values with a status. The header needs no CUDA:
// where the program was built without CUDA's headers every call is UNIMPLEMENTED. CUDA's runtime is
// loaded at the first call (cuda_api.h), so a program starts without it and without a GPU; where
// there is none every call is NOT_FOUND and says where it was looked for. Thread safe, but each
// object belongs to one thread at a time.
#ifndef CADRE_WORKER_RUNTIME_CUDA_DEVICE_H_
#define CADRE_WORKER_RUNTIME_CUDA_DEVICE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::cuda {

// A cudaStream_t; null is the legacy default stream, which waits for all others.
using CudaStreamHandle = void*;

// `error` is a cudaError_t that a call of CUDA's gave. The text is "WHAT: CUDA's own words".
//   RESOURCE_EXHAUSTED   no memory
//   FAILED_PRECONDITION  no GPU, no driver, or one that does not fit the runtime or the program
//   INVALID_ARGUMENT     so CUDA says
//   INTERNAL             everything else
Status CudaStatus(int error, absl::string_view what);

// How many GPUs this process sees, at least 1. FAILED_PRECONDITION: none; says why.
Result<int> CountCudaDevices();

// The one that calls on this thread concern.
Result<int> CurrentCudaDevice();

// Its place on the PCI bus ("0000:65:00.0"), by which two processes find that they have the same.
Result<std::string> CudaBusId(int device);

// Makes `device` the one that later calls on this thread concern.
Status SetCudaDevice(int device);

// As SetCudaDevice(), until this is destroyed.
class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int device);
  ~CudaDeviceScope();
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

  const Status& status() const { return status_; }

 private:
  int before_ = -1;
  Status status_;
};

// On the current device. Operations of a stream run in order, beside those of other streams.
class CudaStream {
 public:
  static Result<std::unique_ptr<CudaStream>> Create();
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  CudaStreamHandle handle() const { return handle_; }
  // Waits for all that was given to it. Has no deadline: for tests.
  Status Synchronize();

 private:
  explicit CudaStream(CudaStreamHandle handle) : handle_(handle) {}
  const CudaStreamHandle handle_;
};

// A moment in a stream's work. Never recorded: has happened.
class CudaEvent {
 public:
  static Result<std::unique_ptr<CudaEvent>> Create();
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Status Record(CudaStreamHandle stream);
  // Work that `stream` is given from now on begins after the event.
  Status MakeWait(CudaStreamHandle stream) const;
  // Whether it has happened. An error is that of whatever ran on the device before.
  Result<bool> Happened() const;
  // On the device's clock; both have happened.
  Result<std::chrono::nanoseconds> Since(const CudaEvent& earlier) const;

 private:
  explicit CudaEvent(void* handle) : handle_(handle) {}
  void* const handle_;
};

// Waits for all that was given to it. Has no deadline.
Status SynchronizeCudaStream(CudaStreamHandle stream);

// On the current device; not initialized. Freed with the last owner, from any thread.
Result<std::shared_ptr<void>> AllocateOnCudaDevice(size_t bytes);

// In the order of `stream`. Host memory must live until the copy is done.
Status FillOnCudaDevice(void* data, uint8_t byte, size_t bytes, CudaStreamHandle stream);
Status CopyToCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream);
Status CopyFromCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream);

}  // namespace cadre::cuda

#endif  // CADRE_WORKER_RUNTIME_CUDA_DEVICE_H_
