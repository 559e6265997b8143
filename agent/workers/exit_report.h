// Describes how a worker ended, for the server, and how other processes of the supervisor ended,
// for the user. Pure; any thread.
#ifndef CADRE_AGENT_WORKERS_EXIT_REPORT_H_
#define CADRE_AGENT_WORKERS_EXIT_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "agent/core/agent_core.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/worker_start.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// The exit as the supervisor reported it.
v1::WorkerExit ExitOf(const supervisor::ExitedFrame& frame);

// A description to follow the process's name; SIGTERM is treated like any other signal.
std::string HowItEnded(const supervisor::ExitedFrame& frame);

// Processes of the worker that SIGKILL has not ended.
v1::WorkerRemains UnkillableProcessesOf(const supervisor::RemainsFrame& frame, uint32_t local_rank);

// The exit of a worker that was not started at all, because PrepareWorkers failed.
v1::WorkerExit NotStarted(const absl::Status& why, const DirectoryFailure& directory);

// The exit of a worker that was not started because the master port is in use. `by` names the
// process that listens there, or is empty if it is not known.
v1::WorkerExit PortIsTaken(uint32_t port, const std::string& by);

// The line in the output of a batch job's script that says why it is ended, in Slurm's words, with
// its newline: "cadre: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T16:00:00 DUE TO TIME LIMIT ***".
// `time` is the node's local time, in this form.
std::string EndOfScriptLine(const NoteEndOfScript& note, const std::string& job_id,
                            const std::string& node, const std::string& time);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_EXIT_REPORT_H_
