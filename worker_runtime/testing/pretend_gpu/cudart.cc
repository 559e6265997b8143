// The pretend CUDA runtime's functions: devices and errors, memory, and streams and events.
#include "worker_runtime/testing/pretend_gpu/cudart.h"

#ifdef CADRE_HAVE_CUDA_HEADERS

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/devices.h"
#include "worker_runtime/testing/pretend_gpu/memory.h"

using cadre::pretend_gpu::Call;
using cadre::pretend_gpu::CurrentDevice;
using cadre::pretend_gpu::DeviceCount;
using cadre::pretend_gpu::Event;
using cadre::pretend_gpu::FindEvent;
using cadre::pretend_gpu::FindStream;
using cadre::pretend_gpu::HasDriver;
using cadre::pretend_gpu::HostHasSeen;
using cadre::pretend_gpu::Moment;
using cadre::pretend_gpu::PhysicalDevice;
using cadre::pretend_gpu::ReportOpenGroup;
using cadre::pretend_gpu::Stream;

namespace cadre::pretend_gpu {
namespace {

constexpr int kVersion = 13000;

thread_local cudaError_t last_error = cudaSuccess;

bool IsDevice(int device) { return device >= 0 && device < DeviceCount(); }

const char* PlainText(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInitializationError:
      return "initialization error";
    case cudaErrorInvalidMemcpyDirection:
      return "invalid copy direction for memcpy";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorNotSupported:
      return "operation not supported";
    default:
      return "unrecognized error code";
  }
}

}  // namespace

cudaError_t WhyNothingWorks() {
  if (!HasDriver()) return cudaErrorInsufficientDriver;
  if (DeviceCount() == 0) return cudaErrorNoDevice;
  static const pid_t first_user = getpid();
  if (getpid() != first_user) return cudaErrorInitializationError;
  return HasMistake() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t KeepError(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace cadre::pretend_gpu

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  using namespace cadre::pretend_gpu;
  if (error != cudaErrorIllegalAddress || !HasMistake()) return PlainText(error);
  static const auto* const text = new std::string(PlainText(error) + (": " + FirstMistake()));
  return text->c_str();
}

cudaError_t cudaGetLastError(void) {
  return std::exchange(cadre::pretend_gpu::last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError(void) { return cadre::pretend_gpu::last_error; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = HasDriver() ? cadre::pretend_gpu::kVersion : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = cadre::pretend_gpu::kVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return Call([&] {
    *count = DeviceCount();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Call([&] {
    *device = CurrentDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Call([&] {
    if (!cadre::pretend_gpu::IsDevice(device)) return cudaErrorInvalidDevice;
    cadre::pretend_gpu::SetCurrentDevice(device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  return Call([&] {
    if (!cadre::pretend_gpu::IsDevice(device)) return cudaErrorInvalidDevice;
    const int length =
        std::snprintf(text, static_cast<size_t>(size), "0000:%02X:00.0", PhysicalDevice(device));
    return length < size ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  return Call([&] {
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
  });
}

}  // extern "C"

// Functions for memory.

namespace cadre::pretend_gpu {
namespace {

constexpr char kCopy[] = "cudaMemcpyAsync";
constexpr char kFill[] = "cudaMemsetAsync";

// Returns whether a device could access the memory; reports a mistake where a real device would
// corrupt memory.
bool IsGood(const void* address, size_t bytes, const char* what) {
  const std::string why = WhyNotOnDevice(address, bytes, -1);
  if (!why.empty()) ReportMistake(std::string(what) + ": the memory " + why);
  return why.empty();
}

cudaError_t CopyToDevice(void* to, const void* from, size_t bytes, Stream* stream) {
  char* const target = AsDeviceSeesIt(to);
  uint64_t job = 0;
  if (IsPinned(from)) {
    job = stream->Push([=] { memcpy(target, from, bytes); });
  } else {
    // CUDA stages pageable memory before the call returns.
    const auto* const begin = static_cast<const char*>(from);
    const auto taken = std::make_shared<std::vector<char>>(begin, begin + bytes);
    job = stream->Push([=] { memcpy(target, taken->data(), bytes); });
  }
  NoteUse({to, bytes, true}, *stream, job, kCopy, nullptr);
  return WhyNothingWorks();
}

cudaError_t CopyFromDevice(void* to, const void* from, size_t bytes, Stream* stream) {
  const char* const source = AsDeviceSeesIt(from);
  const uint64_t job = stream->Push([=] { memcpy(to, source, bytes); });
  NoteUse({from, bytes, false}, *stream, job, kCopy, nullptr);
  if (!IsPinned(to)) {
    const Moment moment = stream->Pushed();
    stream->WaitFor(job);
    HostHasSeen(moment);
  }
  return WhyNothingWorks();
}

cudaError_t CopyOnDevice(void* to, const void* from, size_t bytes, Stream* stream) {
  char* const target = AsDeviceSeesIt(to);
  const char* const source = AsDeviceSeesIt(from);
  const uint64_t job = stream->Push([=] { memmove(target, source, bytes); });
  NoteUse({from, bytes, false}, *stream, job, kCopy, nullptr);
  NoteUse({to, bytes, true}, *stream, job, kCopy, nullptr);
  return WhyNothingWorks();
}

cudaError_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream* stream) {
  if (bytes == 0) return cudaSuccess;
  if (kind == cudaMemcpyDefault) {
    kind = IsOnDevice(to) ? (IsOnDevice(from) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                          : cudaMemcpyDeviceToHost;
  }
  const bool reads = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool writes = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  if (!reads && !writes) return cudaErrorInvalidMemcpyDirection;
  if (IsOnDevice(from) != reads || IsOnDevice(to) != writes) return cudaErrorInvalidValue;
  if ((reads && !IsGood(from, bytes, kCopy)) || (writes && !IsGood(to, bytes, kCopy)) ||
      ReportOpenGroup(stream, kCopy)) {
    return cudaErrorIllegalAddress;
  }
  if (!reads) return CopyToDevice(to, from, bytes, stream);
  return writes ? CopyOnDevice(to, from, bytes, stream) : CopyFromDevice(to, from, bytes, stream);
}

}  // namespace
}  // namespace cadre::pretend_gpu

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  return Call([&] {
    *address = cadre::pretend_gpu::AllocateOnDevice(CurrentDevice(), bytes);
    return *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

cudaError_t cudaFree(void* address) {
  return Call([&] {
    if (address == nullptr) return cudaSuccess;
    if (!cadre::pretend_gpu::FreeOnDevice(address)) return cudaErrorInvalidValue;
    return cadre::pretend_gpu::WhyNothingWorks();
  });
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  return Call([&] {
    *address = cadre::pretend_gpu::AllocatePinned(bytes);
    return *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

cudaError_t cudaFreeHost(void* address) {
  return Call([&] {
    if (address == nullptr || cadre::pretend_gpu::FreePinned(address)) return cudaSuccess;
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call([&] {
    Stream* const on = FindStream(stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    return cadre::pretend_gpu::Copy(to, from, bytes, kind, on);
  });
}

cudaError_t cudaMemsetAsync(void* address, int byte, size_t bytes, cudaStream_t stream) {
  using namespace cadre::pretend_gpu;
  return Call([&] {
    Stream* const on = FindStream(stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (!IsGood(address, bytes, kFill) || ReportOpenGroup(on, kFill)) {
      return cudaErrorIllegalAddress;
    }
    char* const target = AsDeviceSeesIt(address);
    const uint64_t job = on->Push([=] { memset(target, byte, bytes); });
    NoteUse({address, bytes, true}, *on, job, kFill, nullptr);
    return WhyNothingWorks();
  });
}

}  // extern "C"

// Functions for streams and events. All streams are cudaStreamNonBlocking.

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return Call([&] {
    // A stream that waits for the default stream is not simulated.
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;
    *stream = reinterpret_cast<cudaStream_t>(cadre::pretend_gpu::MakeStream(CurrentDevice()));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Call([&] {
    return cadre::pretend_gpu::DestroyStream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Call([&] {
    const Stream* const found = FindStream(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (ReportOpenGroup(found, "cudaStreamSynchronize")) return cudaErrorIllegalAddress;
    const Moment moment = found->Pushed();
    found->WaitFor(moment.at(found->number()));
    HostHasSeen(moment);
    return cadre::pretend_gpu::WhyNothingWorks();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Call([&] {
    const Stream* const found = FindStream(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    const Moment moment = found->Pushed();
    if (found->done() < moment.at(found->number())) return cudaErrorNotReady;
    HostHasSeen(moment);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Call([&] {
    Stream* const waiting = FindStream(stream);
    const Event* const found = FindEvent(event);
    if (waiting == nullptr || found == nullptr) return cudaErrorInvalidResourceHandle;
    if (ReportOpenGroup(waiting, "cudaStreamWaitEvent")) return cudaErrorIllegalAddress;
    found->MakeWait(*waiting);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return Call([&] {
    *event = reinterpret_cast<cudaEvent_t>(cadre::pretend_gpu::MakeEvent(CurrentDevice()));
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call([&] {
    return cadre::pretend_gpu::DestroyEvent(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call([&] {
    Stream* const on = FindStream(stream);
    Event* const found = FindEvent(event);
    if (on == nullptr || found == nullptr || on->device() != found->device()) {
      return cudaErrorInvalidResourceHandle;
    }
    if (ReportOpenGroup(on, "cudaEventRecord")) return cudaErrorIllegalAddress;
    found->Record(*on);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call([&] {
    const Event* const found = FindEvent(event);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    return found->Happened() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call([&] {
    const Event* const found = FindEvent(event);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (ReportOpenGroup(nullptr, "cudaEventSynchronize")) return cudaErrorIllegalAddress;
    found->Wait();
    return cadre::pretend_gpu::WhyNothingWorks();
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return Call([&] {
    const Event* const first = FindEvent(begin);
    const Event* const second = FindEvent(end);
    if (first == nullptr || second == nullptr || !first->recorded() || !second->recorded()) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!first->Happened() || !second->Happened()) return cudaErrorNotReady;
    *milliseconds =
        std::chrono::duration<float, std::milli>(second->time() - first->time()).count();
    return cudaSuccess;
  });
}

// For tests; CUDA has no such function: while a stream is held, it begins no further job.
void pretendGpuHold(cudaStream_t stream, int hold) {
  Stream* const found = FindStream(stream);
  if (found != nullptr) found->Hold(hold != 0);
}

}  // extern "C"

#endif  // CADRE_HAVE_CUDA_HEADERS
