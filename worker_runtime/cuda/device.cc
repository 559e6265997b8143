#include "worker_runtime/cuda/device.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

#ifdef CADRE_HAVE_CUDA_RUNTIME
#include <cuda_runtime.h>
#endif

namespace cadre::cuda {

#ifdef CADRE_HAVE_CUDA_RUNTIME
namespace {

StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return StatusCode::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return StatusCode::kFailedPrecondition;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidConfiguration:
      return StatusCode::kInvalidArgument;
    default:
      return StatusCode::kInternal;
  }
}

cudaStream_t Stream(CudaStreamHandle handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t Event(void* handle) { return static_cast<cudaEvent_t>(handle); }

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Explains CUDA's "insufficient driver": most often there is none at all.
std::string DriverText() {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA driver is installed here";
  }
  cudaRuntimeGetVersion(&runtime);
  return absl::StrCat("the driver is for CUDA ", VersionText(driver), ", the program for ",
                      VersionText(runtime));
}

Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
            CudaStreamHandle stream) {
  if (bytes == 0) return OkStatus();
  return CudaStatus(cudaMemcpyAsync(to, from, bytes, kind, Stream(stream)), "cudaMemcpyAsync");
}

}  // namespace

Status CudaStatus(int error, absl::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  const auto code = static_cast<cudaError_t>(error);
  // Errors that the next call would report again are taken back.
  cudaGetLastError();
  return Status(CodeOf(code), absl::StrCat(what, ": ", cudaGetErrorString(code)));
}

Result<int> CountCudaDevices() {
  int count = 0;
  const Status status = CudaStatus(cudaGetDeviceCount(&count), "looking for a GPU");
  if (!status.ok()) {
    return Status(status.code(), absl::StrCat(status.message(), " (", DriverText(), ")"));
  }
  if (count > 0) return count;
  return FailedPreconditionError(absl::StrCat("looking for a GPU: none (", DriverText(),
                                              "; CUDA_VISIBLE_DEVICES may hide it)"));
}

Result<int> CurrentCudaDevice() {
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  return device;
}

Result<std::string> DescribeCudaDevice(int device) {
  cudaDeviceProp properties;
  RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  int driver = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  return absl::StrCat(properties.name, ", compute capability ", properties.major, ".",
                      properties.minor, ", driver ", VersionText(driver));
}

Result<std::string> CudaBusId(int device) {
  char text[32] = {};
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetPCIBusId(text, sizeof(text), device), "cudaDeviceGetPCIBusId"));
  return std::string(text);
}

Status SetCudaDevice(int device) {
  return CudaStatus(cudaSetDevice(device), absl::StrCat("cudaSetDevice(", device, ")"));
}

CudaDeviceScope::CudaDeviceScope(int device) {
  status_ = CudaStatus(cudaGetDevice(&before_), "cudaGetDevice");
  if (!status_.ok()) before_ = -1;
  status_.Update(SetCudaDevice(device));
}

CudaDeviceScope::~CudaDeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

Result<std::unique_ptr<CudaStream>> CudaStream::Create() {
  int lowest = 0, highest = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                             "cudaDeviceGetStreamPriorityRange"));
  cudaStream_t stream = nullptr;
  // Others wait for what is sent, so it goes before the computation that runs beside it.
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest),
                             "cudaStreamCreateWithPriority"));
  return std::unique_ptr<CudaStream>(new CudaStream(stream));
}

CudaStream::~CudaStream() { cudaStreamDestroy(Stream(handle_)); }

Status CudaStream::Synchronize() { return SynchronizeCudaStream(handle_); }

Status SynchronizeCudaStream(CudaStreamHandle stream) {
  return CudaStatus(cudaStreamSynchronize(Stream(stream)), "cudaStreamSynchronize");
}

Result<std::unique_ptr<CudaEvent>> CudaEvent::Create() {
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "cudaEventCreate"));
  return std::unique_ptr<CudaEvent>(new CudaEvent(event));
}

CudaEvent::~CudaEvent() { cudaEventDestroy(Event(handle_)); }

Status CudaEvent::Record(CudaStreamHandle stream) {
  return CudaStatus(cudaEventRecord(Event(handle_), Stream(stream)), "cudaEventRecord");
}

Status CudaEvent::MakeWait(CudaStreamHandle stream) const {
  return CudaStatus(cudaStreamWaitEvent(Stream(stream), Event(handle_), 0), "cudaStreamWaitEvent");
}

Result<bool> CudaEvent::Happened() const {
  const cudaError_t result = cudaEventQuery(Event(handle_));
  if (result == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  RETURN_IF_ERROR(CudaStatus(result, "cudaEventQuery"));
  return true;
}

Result<std::chrono::nanoseconds> CudaEvent::Since(const CudaEvent& earlier) const {
  float milliseconds = 0;
  RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, Event(earlier.handle_), Event(handle_)),
                 "cudaEventElapsedTime"));
  return std::chrono::nanoseconds(static_cast<int64_t>(double{milliseconds} * 1e6));
}

Result<std::shared_ptr<void>> AllocateOnCudaDevice(size_t bytes) {
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, std::max<size_t>(bytes, 1)),
                             absl::StrCat("allocating ", bytes, " bytes")));
  return std::shared_ptr<void>(memory, [](void* data) { cudaFree(data); });
}

Status FillOnCudaDevice(void* data, uint8_t byte, size_t bytes, CudaStreamHandle stream) {
  if (bytes == 0) return OkStatus();
  return CudaStatus(cudaMemsetAsync(data, byte, bytes, Stream(stream)), "cudaMemsetAsync");
}

Status CopyToCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream) {
  return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
}

Status CopyFromCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
}

Status CopyOnCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

#else

namespace {

Status NotBuilt() { return UnimplementedError("this program was built without CUDA's runtime"); }

}  // namespace

Status CudaStatus(int error, absl::string_view what) {
  if (error == 0) return OkStatus();
  return InternalError(absl::StrCat(what, ": CUDA error ", error));
}
Result<int> CountCudaDevices() { return NotBuilt(); }
Result<int> CurrentCudaDevice() { return NotBuilt(); }
Result<std::string> DescribeCudaDevice(int) { return NotBuilt(); }
Result<std::string> CudaBusId(int) { return NotBuilt(); }
Status SetCudaDevice(int) { return NotBuilt(); }
CudaDeviceScope::CudaDeviceScope(int) : status_(NotBuilt()) {}
CudaDeviceScope::~CudaDeviceScope() { before_ = -1; }
Result<std::unique_ptr<CudaStream>> CudaStream::Create() { return NotBuilt(); }
CudaStream::~CudaStream() = default;
Status CudaStream::Synchronize() { return NotBuilt(); }
Status SynchronizeCudaStream(CudaStreamHandle) { return NotBuilt(); }
Result<std::unique_ptr<CudaEvent>> CudaEvent::Create() { return NotBuilt(); }
CudaEvent::~CudaEvent() = default;
Status CudaEvent::Record(CudaStreamHandle) { return NotBuilt(); }
Status CudaEvent::MakeWait(CudaStreamHandle) const { return NotBuilt(); }
Result<bool> CudaEvent::Happened() const { return NotBuilt(); }
Result<std::chrono::nanoseconds> CudaEvent::Since(const CudaEvent&) const { return NotBuilt(); }
Result<std::shared_ptr<void>> AllocateOnCudaDevice(size_t) { return NotBuilt(); }
Status FillOnCudaDevice(void*, uint8_t, size_t, CudaStreamHandle) { return NotBuilt(); }
Status CopyToCudaDevice(void*, const void*, size_t, CudaStreamHandle) { return NotBuilt(); }
Status CopyFromCudaDevice(void*, const void*, size_t, CudaStreamHandle) { return NotBuilt(); }
Status CopyOnCudaDevice(void*, const void*, size_t, CudaStreamHandle) { return NotBuilt(); }

#endif

}  // namespace cadre::cuda
