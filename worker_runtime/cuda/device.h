// CUDA's devices, memory, streams and events, with errors as statuses. The header needs no CUDA: in
// a program built without CUDA's headers every call returns UNIMPLEMENTED. CUDA's runtime is loaded
// at the first call (cuda_api.h), so a program starts without it and without a GPU. If the runtime
// is missing, every call returns NOT_FOUND and says where it was searched for. Thread safe, but
// each object may be used by only one thread at a time.
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

// `error` is a cudaError_t that CUDA returned. The text is "WHAT: CUDA's own words".
//   RESOURCE_EXHAUSTED   memory is short
//   FAILED_PRECONDITION  no GPU, no driver, or one that does not match the runtime or program
//   INVALID_ARGUMENT     CUDA's invalid value or invalid resource handle
//   INTERNAL             all other errors
Status CudaStatus(int error, absl::string_view what);

// Returns the number of GPUs that this process sees, at least 1. FAILED_PRECONDITION: there is
// none; the text says why.
Result<int> CountCudaDevices();

// Returns the device that this thread's calls use.
Result<int> CurrentCudaDevice();

// Returns its PCI bus id ("0000:65:00.0"), by which two processes detect that they use the same
// GPU.
Result<std::string> CudaBusId(int device);

// Makes `device` the one that this thread's later calls use.
Status SetCudaDevice(int device);

// Has the effect of SetCudaDevice() until it is destroyed.
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

// A stream on the current device. Its operations run in order, concurrently with other streams.
class CudaStream {
 public:
  static Result<std::unique_ptr<CudaStream>> Create();
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  CudaStreamHandle handle() const { return handle_; }
  // Waits for all its operations. It has no deadline and is meant for tests.
  Status Synchronize();

 private:
  explicit CudaStream(CudaStreamHandle handle) : handle_(handle) {}
  const CudaStreamHandle handle_;
};

// A point in a stream's work. An event that was never recorded counts as having happened.
class CudaEvent {
 public:
  static Result<std::unique_ptr<CudaEvent>> Create();
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Status Record(CudaStreamHandle stream);
  // Makes work that is enqueued on `stream` from now on wait for the event.
  Status MakeWait(CudaStreamHandle stream) const;
  // Returns true if the event has happened. An error is that of any earlier work on the device.
  Result<bool> Happened() const;
  // Measures with the device's clock. Both events must have happened.
  Result<std::chrono::nanoseconds> Since(const CudaEvent& earlier) const;

 private:
  explicit CudaEvent(void* handle) : handle_(handle) {}
  void* const handle_;
};

// Waits for all operations of the stream. It has no deadline.
Status SynchronizeCudaStream(CudaStreamHandle stream);

// Allocates uninitialized memory on the current device. The last owner frees it, on any thread.
Result<std::shared_ptr<void>> AllocateOnCudaDevice(size_t bytes);

// These run in the order of `stream`. Host memory must stay valid until the copy is done.
Status FillOnCudaDevice(void* data, uint8_t byte, size_t bytes, CudaStreamHandle stream);
Status CopyToCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream);
Status CopyFromCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream);

}  // namespace cadre::cuda

#endif  // CADRE_WORKER_RUNTIME_CUDA_DEVICE_H_
