// Where the core's messages for one node's stream go.
#ifndef CADRE_RENDEZVOUS_HOST_NODE_SINK_H_
#define CADRE_RENDEZVOUS_HOST_NODE_SINK_H_

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"

namespace cadre::host {

// Called by the thread that runs the core, which may be one within CoreThread::Post or CallStore.
// Must not block.
class NodeSink {
 public:
  virtual ~NodeSink() = default;
  // The message may wait for Flush or Close.
  virtual void Send(v1::ServerMessage message) = 0;
  // Called when nothing more follows at once.
  virtual void Flush() {}
  // Nothing is sent after this.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_NODE_SINK_H_
