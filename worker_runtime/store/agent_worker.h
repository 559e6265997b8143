// A Worker whose store is its node's agent, reached over a unix socket.
#ifndef CADRE_WORKER_RUNTIME_STORE_AGENT_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_AGENT_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/environment/worker_environment.h"
#include "worker_runtime/store/call_stream.h"

namespace cadre::store {

// A worker's calls to its agent (rpc/worker_protocol.h), with deadlines and retries of calls that
// did not get through. Thread safe.
class AgentChannel {
 public:
  AgentChannel(const std::string& socket, const std::string& token);

  // Each of these takes an id that no call has used yet.
  Result<rpc::Place> SayHello(uint64_t id, const rpc::Caller& from, absl::Duration patience);
  // Returns when the generation ends, with CANCELLED after StopAwaiting(), or when the agent is
  // lost.
  Status AwaitEnd(uint64_t id, const rpc::Caller& from);
  void StopAwaiting() { end_.Close(); }
  Result<rpc::Place> Rejoin(uint64_t id, const rpc::Rejoin& call, absl::Duration timeout);

  // Retries the call, which the server recognizes as the same one, while it does not get through:
  // for `patience`, or for as long as the call itself waits. wait_ms is that time, and is reduced
  // with every retry. The reply may carry the store's own error.
  Result<rpc::WorkerReply> Execute(rpc::WorkerCall call, absl::Duration patience);

 private:
  // `wait` is how long the agent may take before it answers.
  Result<rpc::WorkerReply> CallOnce(const rpc::WorkerCall& call, absl::Duration wait);
  Status OtherVersion(const Status& status) const;
  // Adds an explanation for the user of the program.
  Status Describe(const Status& status, absl::Duration wait) const;

  const std::string socket_;
  CallStream calls_;
  // AwaitEnd() has a separate connection: otherwise its waiting thread would read the answers of
  // all other calls.
  CallStream end_;
};

// How long calls are retried while the agent, or the server behind it, cannot be reached. A call
// with its own timeout is retried for that long.
struct AgentWorkerOptions {
  absl::Duration hello_timeout = absl::Seconds(10);
  absl::Duration call_timeout = absl::Minutes(1);
};

// Connects to the agent. Like Worker::Connect, for an environment that was read elsewhere. Several
// workers may exist in one process.
Result<std::unique_ptr<Worker>> ConnectToAgent(const environment::WorkerEnvironment& environment,
                                               const AgentWorkerOptions& options = {});

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_AGENT_WORKER_H_
