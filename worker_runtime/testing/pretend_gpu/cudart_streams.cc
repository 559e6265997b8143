// CUDA's functions for streams and events. All streams are cudaStreamNonBlocking.
#include "worker_runtime/testing/pretend_gpu/cudart_call.h"

#ifdef CADRE_HAVE_CUDA_HEADERS

#include <chrono>

#include "worker_runtime/testing/pretend_gpu/devices.h"
#include "worker_runtime/testing/pretend_gpu/mistakes.h"
#include "worker_runtime/testing/pretend_gpu/open_group.h"

using cadre::pretend_gpu::Call;
using cadre::pretend_gpu::CurrentDevice;
using cadre::pretend_gpu::Event;
using cadre::pretend_gpu::FindEvent;
using cadre::pretend_gpu::FindStream;
using cadre::pretend_gpu::HostHasSeen;
using cadre::pretend_gpu::Moment;
using cadre::pretend_gpu::ReportOpenGroup;
using cadre::pretend_gpu::Stream;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return Call([&] {
    // One that waits for the default stream is not simulated.
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

// For tests, not CUDA's: while a stream is held no further job of it begins.
void pretendGpuHold(cudaStream_t stream, int hold) {
  Stream* const found = FindStream(stream);
  if (found != nullptr) found->Hold(hold != 0);
}

}  // extern "C"

#endif  // CADRE_HAVE_CUDA_HEADERS
