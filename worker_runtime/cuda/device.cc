#include "worker_runtime/cuda/device.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace cadre::cuda {
#ifdef CADRE_HAVE_CUDA_HEADERS
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
      return StatusCode::kInvalidArgument;
    default:
      return StatusCode::kInternal;
  }
}

// Only for code that cannot run unless the library was loaded, such as users of streams and events.
const CudaApi& Loaded() { return **LoadCudaApi(); }

cudaStream_t Stream(CudaStreamHandle handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t Event(void* handle) { return static_cast<cudaEvent_t>(handle); }

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Explains CUDA's "insufficient driver" error, whose usual cause is that there is no driver at all.
std::string DriverText() {
  const CudaApi& api = Loaded();
  int driver = 0, runtime = 0;
  if (api.DriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA driver is installed here";
  }
  api.RuntimeGetVersion(&runtime);
  return absl::StrCat("the driver is for CUDA ", VersionText(driver), ", the program for ",
                      VersionText(runtime));
}

Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
            CudaStreamHandle stream) {
  if (bytes == 0) return OkStatus();
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  return CudaStatus(api->MemcpyAsync(to, from, bytes, kind, Stream(stream)), "cudaMemcpyAsync");
}

}  // namespace

Status CudaStatus(int error, absl::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  const auto code = static_cast<cudaError_t>(error);
  const CudaApi& api = Loaded();
  // Clears the error, which the next call would otherwise report again.
  api.GetLastError();
  return Status(CodeOf(code), absl::StrCat(what, ": ", api.GetErrorString(code)));
}

Result<int> CountCudaDevices() {
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  int count = 0;
  const Status status = CudaStatus(api->GetDeviceCount(&count), "looking for a GPU");
  if (!status.ok()) {
    return Status(status.code(), absl::StrCat(status.message(), " (", DriverText(), ")"));
  }
  if (count > 0) return count;
  return FailedPreconditionError(
      absl::StrCat("no GPU was found (", DriverText(), "; CUDA_VISIBLE_DEVICES may hide GPUs)"));
}

Result<int> CurrentCudaDevice() {
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(api->GetDevice(&device), "cudaGetDevice"));
  return device;
}

Result<std::string> CudaBusId(int device) {
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  char text[32] = {};
  RETURN_IF_ERROR(
      CudaStatus(api->DeviceGetPCIBusId(text, sizeof(text), device), "cudaDeviceGetPCIBusId"));
  return std::string(text);
}

Status SetCudaDevice(int device) {
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  return CudaStatus(api->SetDevice(device), absl::StrCat("cudaSetDevice(", device, ")"));
}

CudaDeviceScope::CudaDeviceScope(int device) {
  const Result<int> before = CurrentCudaDevice();
  before_ = before.value_or(-1);
  status_ = before.status();
  status_.Update(SetCudaDevice(device));
}

CudaDeviceScope::~CudaDeviceScope() {
  if (before_ >= 0) Loaded().SetDevice(before_);
}

Result<std::unique_ptr<CudaStream>> CudaStream::Create() {
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  int lowest = 0, highest = 0;
  RETURN_IF_ERROR(CudaStatus(api->DeviceGetStreamPriorityRange(&lowest, &highest),
                             "cudaDeviceGetStreamPriorityRange"));
  cudaStream_t stream = nullptr;
  // Other ranks wait for what is sent, so it has priority over the computation that runs beside it.
  RETURN_IF_ERROR(CudaStatus(api->StreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest),
                             "cudaStreamCreateWithPriority"));
  return std::unique_ptr<CudaStream>(new CudaStream(stream));
}

CudaStream::~CudaStream() { Loaded().StreamDestroy(Stream(handle_)); }

Status CudaStream::Synchronize() { return SynchronizeCudaStream(handle_); }

Status SynchronizeCudaStream(CudaStreamHandle stream) {
  return CudaStatus(Loaded().StreamSynchronize(Stream(stream)), "cudaStreamSynchronize");
}

Result<std::unique_ptr<CudaEvent>> CudaEvent::Create() {
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(CudaStatus(api->EventCreate(&event), "cudaEventCreate"));
  return std::unique_ptr<CudaEvent>(new CudaEvent(event));
}

CudaEvent::~CudaEvent() { Loaded().EventDestroy(Event(handle_)); }

Status CudaEvent::Record(CudaStreamHandle stream) {
  return CudaStatus(Loaded().EventRecord(Event(handle_), Stream(stream)), "cudaEventRecord");
}

Status CudaEvent::MakeWait(CudaStreamHandle stream) const {
  return CudaStatus(Loaded().StreamWaitEvent(Stream(stream), Event(handle_), 0),
                    "cudaStreamWaitEvent");
}

Result<bool> CudaEvent::Happened() const {
  const cudaError_t result = Loaded().EventQuery(Event(handle_));
  if (result == cudaErrorNotReady) {
    Loaded().GetLastError();
    return false;
  }
  RETURN_IF_ERROR(CudaStatus(result, "cudaEventQuery"));
  return true;
}

Result<std::chrono::nanoseconds> CudaEvent::Since(const CudaEvent& earlier) const {
  float milliseconds = 0;
  RETURN_IF_ERROR(
      CudaStatus(Loaded().EventElapsedTime(&milliseconds, Event(earlier.handle_), Event(handle_)),
                 "cudaEventElapsedTime"));
  return std::chrono::nanoseconds(static_cast<int64_t>(double{milliseconds} * 1e6));
}

Result<std::shared_ptr<void>> AllocateOnCudaDevice(size_t bytes) {
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(api->Malloc(&memory, std::max<size_t>(bytes, 1)),
                             absl::StrCat("allocating ", bytes, " bytes")));
  return std::shared_ptr<void>(memory, [](void* data) { Loaded().Free(data); });
}

Status FillOnCudaDevice(void* data, uint8_t byte, size_t bytes, CudaStreamHandle stream) {
  if (bytes == 0) return OkStatus();
  ASSIGN_OR_RETURN(const CudaApi* const api, LoadCudaApi());
  return CudaStatus(api->MemsetAsync(data, byte, bytes, Stream(stream)), "cudaMemsetAsync");
}

Status CopyToCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream) {
  return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
}

Status CopyFromCudaDevice(void* to, const void* from, size_t bytes, CudaStreamHandle stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
}

#else

namespace {

Status NotBuilt() { return UnimplementedError("this program was built without CUDA's headers"); }

}  // namespace

Status CudaStatus(int error, absl::string_view what) {
  if (error == 0) return OkStatus();
  return InternalError(absl::StrCat(what, ": CUDA error ", error));
}
Result<int> CountCudaDevices() { return NotBuilt(); }
Result<int> CurrentCudaDevice() { return NotBuilt(); }
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

#endif

}  // namespace cadre::cuda
