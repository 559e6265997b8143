// What happens before what, across gRPC: only in programs built with --config=tsan.
//
// An operation is started with a tag, in one thread, and its tag comes out of a completion queue in
// another; between the two lie gRPC's own lock-free queues, which are not instrumented. The
// definitions in a program come before those of the shared libraries it loads; these tell the
// sanitizer that what was done before a tag was handed in happens before what is done after it came
// out, and leave the work to the real functions.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>

#include <thread>

namespace {

template <typename Function>
Function* Real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

#define CADRE_REAL(function)                             \
  ([]() -> decltype(&function) {                         \
    static const auto real = Real(&function, #function); \
    return real;                                         \
  }())

grpc_event ComeOut(grpc_event event) {
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

}  // namespace

extern "C" {

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  return ComeOut(CADRE_REAL(grpc_completion_queue_next)(queue, deadline, reserved));
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  return ComeOut(CADRE_REAL(grpc_completion_queue_pluck)(queue, tag, deadline, reserved));
}

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  __tsan_release(tag);
  return CADRE_REAL(grpc_call_start_batch)(call, ops, count, tag, reserved);
}

grpc_call_error grpc_server_request_call(grpc_server* server, grpc_call** call,
                                         grpc_call_details* details, grpc_metadata_array* metadata,
                                         grpc_completion_queue* for_call,
                                         grpc_completion_queue* for_notification, void* tag) {
  __tsan_release(tag);
  return CADRE_REAL(grpc_server_request_call)(server, call, details, metadata, for_call,
                                              for_notification, tag);
}

grpc_call_error grpc_server_request_registered_call(
    grpc_server* server, void* method, grpc_call** call, gpr_timespec* deadline,
    grpc_metadata_array* metadata, grpc_byte_buffer** payload, grpc_completion_queue* for_call,
    grpc_completion_queue* for_notification, void* tag) {
  __tsan_release(tag);
  return CADRE_REAL(grpc_server_request_registered_call)(server, method, call, deadline, metadata,
                                                         payload, for_call, for_notification, tag);
}

void grpc_server_shutdown_and_notify(grpc_server* server, grpc_completion_queue* queue, void* tag) {
  __tsan_release(tag);
  CADRE_REAL(grpc_server_shutdown_and_notify)(server, queue, tag);
}

void grpc_channel_watch_connectivity_state(grpc_channel* channel, grpc_connectivity_state last,
                                           gpr_timespec deadline, grpc_completion_queue* queue,
                                           void* tag) {
  __tsan_release(tag);
  CADRE_REAL(grpc_channel_watch_connectivity_state)(channel, last, deadline, queue, tag);
}

}  // extern "C"

// A call in a callback server counts what must happen before OnDone and OnCancel, some of it here
// and some in the library.
namespace grpc {
namespace internal {

void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  __tsan_acquire(&callbacks_outstanding_);
  static const auto real = reinterpret_cast<void (*)(ServerCallbackCall*, bool)>(
      dlsym(RTLD_NEXT, "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb"));
  real(this, inline_ondone);
}

void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  __tsan_acquire(&on_cancel_conditions_remaining_);
  if (reactor->InternalInlineable()) {
    reactor->OnCancel();
    return;
  }
  // The library does the same on a thread of its own.
  Ref();
  std::thread([this, reactor] {
    reactor->OnCancel();
    MaybeDone();
  }).detach();
}

}  // namespace internal
}  // namespace grpc
