// The streams that are open and the store calls that wait for an answer. Thread safe; sinks and
// callers are called without a lock.
#ifndef CADRE_RENDEZVOUS_HOST_CONNECTIONS_H_
#define CADRE_RENDEZVOUS_HOST_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/store.pb.h"
#include "rendezvous/core/event.h"
#include "rendezvous/host/node_sink.h"

namespace cadre::host {

class Connections {
 public:
  using CallDone = std::function<void(const v1::StoreReply&)>;

  // After EndAll the sink is closed before this returns.
  StreamId OpenStream(std::shared_ptr<NodeSink> sink);
  // Runs `then`, which must not block, if the stream is open; it is not closed meanwhile.
  void IfOpen(StreamId stream, absl::FunctionRef<void()> then);
  // Null: it is closed.
  std::shared_ptr<NodeSink> Find(StreamId stream) const;
  // Closes the stream for IfOpen and Find, and then runs `then`, before any other IfOpen.
  std::shared_ptr<NodeSink> Take(
      StreamId stream, absl::FunctionRef<void()> then = [] {});

  // After EndAll the call is answered before this returns.
  CallId AddCall(const v1::StoreRequest& request, CallDone done);
  // Null: it was answered or dropped.
  CallDone TakeCall(CallId call);

  // Closes all streams and answers all calls with `why`, and those that come later.
  void EndAll(const absl::Status& why);
  // The argument of EndAll, if that was called.
  std::optional<absl::Status> ended() const;

  size_t streams() const;
  size_t calls() const;

 private:
  struct Call {
    // Echoed in an answer that the core does not give.
    uint64_t client;
    uint64_t request_id;
    CallDone done;
  };

  mutable absl::Mutex mutex_;
  uint64_t last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_call_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<StreamId, std::shared_ptr<NodeSink>> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<CallId, Call> calls_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_CONNECTIONS_H_
