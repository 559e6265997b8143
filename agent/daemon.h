// Wires one agent: supervisor, server link, local service, output, signals. One loop thread, no
// decisions (those are agent/core's).
#ifndef CADRE_AGENT_DAEMON_H_
#define CADRE_AGENT_DAEMON_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/adoption.h"
#include "agent/core/agent_core.h"
#include "agent/link/server_link.h"
#include "agent/supervisor/client.h"
#include "agent/workers/output_options.h"
#include "agent/workers/worker_options.h"
#include "proto/agent_run.pb.h"
#include "proto/job.pb.h"

namespace cadre {

// Where lines for people go: the live status block or plain lines. Called on the loop thread.
class Display {
 public:
  virtual ~Display() = default;
  // Whole lines of a worker, prefixed, each with its '\n'. `to_stderr`: which stream they came
  // from.
  virtual void WorkerLines(const std::string& lines, bool to_stderr) = 0;
  virtual void Line(const std::string& line) = 0;  // a line of the launcher's own
  virtual void Status(const v1::JobStatus& status, const std::vector<v1::Progress>& progress) = 0;
  virtual void Finish(const Exit& exit) = 0;
};

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
};

// Runs until the agent core says Exit; returns what it said. `supervisor` was started before.
// The signals that the calling thread blocks are read from a signalfd; each ends the job, and
// SIGUSR1 is a scheduler's warning that it is about to.
absl::StatusOr<Exit> RunAgent(const DaemonOptions& options,
                              std::unique_ptr<supervisor::Client> supervisor, ServerLink& link,
                              Display& display);

}  // namespace cadre

#endif  // CADRE_AGENT_DAEMON_H_
