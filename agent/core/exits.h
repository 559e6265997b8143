// How a worker's end and a refused join are judged. Pure; any thread.
#ifndef CADRE_AGENT_CORE_EXITS_H_
#define CADRE_AGENT_CORE_EXITS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// FAILURE_CAUSE_UNSPECIFIED is success. `stopped_by_us`: the worker had been told to stop.
v1::FailureCause ClassifyExit(const v1::WorkerExit& exit, bool stopped_by_us);

// The failure that a worker's end is, for a verdict that no server gives.
v1::Failure FailureOf(const v1::WorkerExited& exited, uint32_t first_rank, const std::string& node,
                      uint64_t generation);

// What the launcher exits with when its Join is refused with this code.
int ExitStatusOfRejection(absl::StatusCode code);

// What it exits with when a signal made it cancel the job and the server gives no verdict.
int StatusOfCancel(int signal);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_EXITS_H_
