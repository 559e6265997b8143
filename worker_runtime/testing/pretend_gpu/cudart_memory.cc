// CUDA's functions for memory.
#include "worker_runtime/testing/pretend_gpu/cudart_call.h"

#ifdef CADRE_HAVE_CUDA_HEADERS

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/devices.h"
#include "worker_runtime/testing/pretend_gpu/memory.h"
#include "worker_runtime/testing/pretend_gpu/mistakes.h"
#include "worker_runtime/testing/pretend_gpu/open_group.h"

using cadre::pretend_gpu::Call;
using cadre::pretend_gpu::CurrentDevice;
using cadre::pretend_gpu::FindStream;
using cadre::pretend_gpu::Stream;

namespace cadre::pretend_gpu {
namespace {

constexpr char kCopy[] = "cudaMemcpyAsync";
constexpr char kFill[] = "cudaMemsetAsync";

// Reports it where a real device would be left to corrupt memory.
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
    // What is not pinned CUDA takes before it returns.
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

#endif  // CADRE_HAVE_CUDA_HEADERS
