// What an agent is started with. Plain values, filled in where the command line is parsed.
#ifndef CADRE_AGENT_DAEMON_OPTIONS_H_
#define CADRE_AGENT_DAEMON_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "agent/adoption.h"
#include "agent/core/agent_config.h"
#include "agent/workers/output_options.h"
#include "agent/workers/worker_options.h"
#include "proto/agent_run.pb.h"

namespace cadre::agent {

struct DaemonOptions {
  AgentConfig core;
  OutputOptions output;
  WorkerOptions workers;
  // How long workers outlive this process if it dies, for another one to carry on; 0: not at all.
  absl::Duration adopt_timeout;
  // How that one knows this agent: all fields up to `slots`.
  v1::AgentRun run;
  // What this process carries on itself. Its supervisor has been given to RunAgent.
  std::optional<Adoption> adoption;
  // What is stopped once the server has taken this agent.
  std::vector<UnfitWorkers> unfit;

  uint64_t incarnation() const {
    return adoption.has_value() ? adoption->run.incarnation() : core.incarnation;
  }
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_DAEMON_OPTIONS_H_
