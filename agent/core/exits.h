// How a worker's end and a refused join are judged. Pure; any thread.
#ifndef CADRE_AGENT_CORE_EXITS_H_
#define CADRE_AGENT_CORE_EXITS_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace cadre {

// FAILURE_CAUSE_UNSPECIFIED is success. `stopped_by_us`: the worker had been told to stop.
v1::FailureCause ClassifyExit(const v1::WorkerExit& exit, bool stopped_by_us);

// What the launcher exits with when its Join is refused with this code.
int ExitStatusOfRejection(absl::StatusCode code);

}  // namespace cadre

#endif  // CADRE_AGENT_CORE_EXITS_H_
