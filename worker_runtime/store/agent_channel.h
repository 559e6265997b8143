// A worker's calls to its agent (rpc/worker_protocol.h): deadlines, and repetition of those that
// did not get through. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_STORE_AGENT_CHANNEL_H_
#define CADRE_WORKER_RUNTIME_STORE_AGENT_CHANNEL_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/store/call_stream.h"

namespace cadre::store {

class AgentChannel {
 public:
  AgentChannel(const std::string& socket, const std::string& token);

  // Each takes the id of a call that was not made yet.
  Result<rpc::Place> SayHello(uint64_t id, const rpc::Caller& from, absl::Duration patience);
  // Ends with the generation, with CANCELLED after StopAwaiting, or with the agent.
  Status AwaitEnd(uint64_t id, const rpc::Caller& from);
  void StopAwaiting() { end_.Close(); }
  Result<rpc::Place> Rejoin(uint64_t id, const rpc::Rejoin& call, absl::Duration timeout);

  // Repeats the call, which is the same one to the server, while it does not get through: for
  // `patience`, or for as long as it waits. wait_ms says how long that is, and shrinks with every
  // repetition. The reply may carry the store's own error.
  Result<rpc::WorkerReply> Execute(rpc::WorkerCall call, absl::Duration patience);

 private:
  // `wait`: what the agent may take before it answers.
  Result<rpc::WorkerReply> CallOnce(const rpc::WorkerCall& call, absl::Duration wait);
  Status OtherVersion(const Status& status) const;
  // In words for the person whose program this is.
  Status Describe(const Status& status, absl::Duration wait) const;

  const std::string socket_;
  CallStream calls_;
  // The generation's end has a connection of its own: who waits for it would read the answers of
  // all others.
  CallStream end_;
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_AGENT_CHANNEL_H_
