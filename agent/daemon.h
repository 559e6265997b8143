// Runs one agent: owns its objects and the loop that feeds events to agent/core, and executes the
// core's commands. It decides nothing itself.
#ifndef CADRE_AGENT_DAEMON_H_
#define CADRE_AGENT_DAEMON_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/adoption.h"
#include "agent/core/agent_core.h"
#include "agent/display.h"
#include "agent/link/server_link.h"
#include "agent/supervisor/client.h"
#include "agent/workers/worker_options.h"
#include "proto/agent_run.pb.h"

namespace cadre::agent {

// The options with which an agent is started. Plain values, filled in by the command line parser.
struct DaemonOptions {
  AgentConfig core;
  OutputOptions output;
  WorkerOptions workers;
  // How long workers outlive this process if it dies, so that another one can adopt them; 0: not at
  // all.
  absl::Duration adopt_timeout;
  // How a later process recognizes this agent's run: all fields up to `slots`.
  v1::AgentRun run;
  // The workers and files that this process adopts. RunAgent has been passed their supervisor.
  std::optional<Adoption> adoption;
  // Of an allocation that runs a batch job's script or a step: the spec that the cluster's agent
  // wrote, which has variables of this node and, for a script, its path here. The server's spec has
  // neither.
  std::optional<v1::JobSpec> own_spec;
  // Workers to stop once the server has accepted this agent.
  std::vector<UnfitWorkers> unfit;

  uint64_t incarnation() const {
    return adoption.has_value() ? adoption->run.incarnation() : core.incarnation;
  }
};

// Runs until the agent core emits Exit, and returns that. `supervisor` must be running. The signals
// that the calling thread blocks are read from a signalfd; each ends the job, and SIGUSR1 is a
// scheduler's warning that it is about to.
absl::StatusOr<Exit> RunAgent(const DaemonOptions& options,
                              std::unique_ptr<supervisor::Client> supervisor, ServerLink& link,
                              Display& display);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_DAEMON_H_
