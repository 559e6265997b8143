// How a worker ended, for the server, and what else the supervisor started, for people. Pure; any
// thread.
#ifndef CADRE_AGENT_EXIT_REPORT_H_
#define CADRE_AGENT_EXIT_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/worker_start.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// As the supervisor saw it.
v1::WorkerExit ExitOf(const supervisor::ExitedFrame& frame);

// In words that follow the name of what ended; SIGTERM is a signal like any other here.
std::string HowItEnded(const supervisor::ExitedFrame& frame);

// What SIGKILL has not ended of the worker.
v1::WorkerRemains RemainsOf(const supervisor::RemainsFrame& frame, uint32_t local_rank);

// Of one that was not even given to the supervisor, because PrepareWorkers failed.
v1::WorkerExit NotStarted(const absl::Status& why, const DirectoryFailure& directory);

// Likewise, because somebody else listens where the ranks were to meet. `by`: who, if that is
// known.
v1::WorkerExit PortIsTaken(uint32_t port, const std::string& by);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EXIT_REPORT_H_
