// A job's phase and pace in words, for server and launcher; the dashboard's are in its dom.js.
#ifndef CADRE_RPC_JOB_PHASE_H_
#define CADRE_RPC_JOB_PHASE_H_

#include <string>

#include "proto/job.pb.h"

namespace cadre::rpc {

// "running", "cancelled"; "starting" of a job that no server has told of yet.
std::string PhaseName(v1::JobPhase phase);

// No step has come for several times as long as usual: what is reported with the last one, such as
// a rate, is not what the job does now.
bool StandsStill(const v1::JobProgress& progress);
// Of one that does "no step for 25s", else empty.
std::string QuietText(const v1::JobProgress& progress);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_JOB_PHASE_H_
