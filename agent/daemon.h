// One agent: its parts, the loop that gives their events to agent/core, and who carries out which
// of the core's commands. It decides nothing itself.
#ifndef CADRE_AGENT_DAEMON_H_
#define CADRE_AGENT_DAEMON_H_

#include <memory>

#include "absl/status/statusor.h"
#include "agent/core/command.h"
#include "agent/daemon_options.h"
#include "agent/display.h"
#include "agent/link/server_link.h"
#include "agent/supervisor/client.h"

namespace cadre::agent {

// Runs until the agent core says Exit; returns what it said. `supervisor` was started before.
// The signals that the calling thread blocks are read from a signalfd; each ends the job, and
// SIGUSR1 is a scheduler's warning that it is about to.
absl::StatusOr<Exit> RunAgent(const DaemonOptions& options,
                              std::unique_ptr<supervisor::Client> supervisor, ServerLink& link,
                              Display& display);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_DAEMON_H_
