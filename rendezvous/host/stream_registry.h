// The open streams of nodes, and the store calls that wait for an answer. Any thread of the server
// adds to them; the core's thread sends and answers.
#ifndef CADRE_RENDEZVOUS_HOST_STREAM_REGISTRY_H_
#define CADRE_RENDEZVOUS_HOST_STREAM_REGISTRY_H_

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
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/core/core_event.h"

namespace cadre::host {

// Receives the core's messages for one node's stream. It is called by the thread that runs the
// core, which may be one inside CoreThread::Post or CallStore, and must not block.
class NodeSink {
 public:
  virtual ~NodeSink() = default;
  // The message may be buffered until Flush or Close.
  virtual void Send(v1::ServerMessage message) = 0;
  // Called when no message follows immediately.
  virtual void Flush() {}
  // No message follows.
  virtual void Close(const absl::Status& status) = 0;
};

// Thread safe. Sinks and `done` are called without a lock.
class StreamRegistry {
 public:
  using CallDone = std::function<void(const v1::StoreReply&)>;

  // After EndAll the sink is closed before this returns.
  StreamId OpenStream(std::shared_ptr<NodeSink> sink);
  // Runs `then`, which must not block, if the stream is open, and keeps it from being closed
  // meanwhile.
  void IfOpen(StreamId stream, absl::FunctionRef<void()> then);
  // Returns null if the stream is closed.
  std::shared_ptr<NodeSink> Find(StreamId stream) const;
  // Closes the stream for IfOpen and Find, and runs `then` before any other IfOpen.
  std::shared_ptr<NodeSink> Take(
      StreamId stream, absl::FunctionRef<void()> then = [] {});

  // After EndAll the call is answered before this returns.
  CallId AddCall(const v1::StoreRequest& request, CallDone done);
  // Returns null if the call was answered or dropped.
  CallDone TakeCall(CallId call);

  // Closes all streams and answers all calls with `why`, now and later.
  void EndAll(const absl::Status& why);
  // The argument of EndAll, if that was called.
  std::optional<absl::Status> ended() const;

  size_t streams() const;
  size_t calls() const;

 private:
  struct Call {
    // Copied into an answer that does not come from the core.
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

#endif  // CADRE_RENDEZVOUS_HOST_STREAM_REGISTRY_H_
