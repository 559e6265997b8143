// A Worker whose store is its node's agent, reached over a unix socket.
#ifndef CADRE_WORKER_RUNTIME_STORE_AGENT_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_AGENT_WORKER_H_

#include <memory>

#include "absl/time/time.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/environment/worker_environment.h"

namespace cadre::store {

// How long calls are repeated while the agent, or the server behind it, cannot be reached. A call
// with a timeout of its own is repeated for as long as that.
struct AgentWorkerOptions {
  absl::Duration hello_patience = absl::Seconds(10);
  absl::Duration call_patience = absl::Minutes(1);
};

// Says hello to the agent. As Worker::Connect, for an environment that was read elsewhere. Several
// workers may live in one process.
Result<std::unique_ptr<Worker>> ConnectToAgent(const environment::WorkerEnvironment& environment,
                                               const AgentWorkerOptions& options = {});

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_AGENT_WORKER_H_
