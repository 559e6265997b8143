// One connection to a server and its stream.
#ifndef CADRE_AGENT_LINK_LINK_ATTEMPT_H_
#define CADRE_AGENT_LINK_LINK_ATTEMPT_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/rendezvous.grpc.pb.h"

namespace cadre::agent {

// Tells of what has ended through its queue. Guarded by its link's mutex, where nothing else is
// said.
struct Attempt {
  // What the connecting thread starts, and Send() and Stop(): tags of the stream's operations.
  enum Tag : intptr_t { kStarted = 1, kHeaders, kRead, kWritten, kSaidAll, kRefusal, kFinished };

  Attempt() = default;
  ~Attempt() {
    stream.reset();
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // The tag for an operation that begins.
  void* Begin(Tag tag) {
    ++under_way;
    return reinterpret_cast<void*>(tag);
  }
  void Finish() {
    over = true;
    stream->Finish(&end, Begin(kFinished));
  }

  uint64_t number = 0;
  std::string endpoint;
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::NodeMessage, v1::ServerMessage>> stream;
  // One of our servers has answered: it may be written to.
  bool open = false;
  // It has taken this node in. For the connecting thread alone, and the next two.
  bool welcome = false;
  bool finished = false;
  v1::ServerMessage incoming;
  // gRPC's while `writing` holds.
  v1::NodeMessage outgoing;
  bool writing = false;
  // Nothing more is written.
  bool over = false;
  // Operations that the queue has not given back.
  int under_way = 0;
  grpc::Status end;
  // Store requests that are answered here, and what wakes the connecting thread for that.
  std::deque<v1::NodeMessage> refused;
  grpc::Alarm refusal;
  // Why it was cancelled from this side.
  std::optional<absl::Status> cause;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_LINK_ATTEMPT_H_
