// A job's phase in words, for server and launcher; the dashboard's are in its dom.js.
#ifndef CADRE_RPC_JOB_PHASE_H_
#define CADRE_RPC_JOB_PHASE_H_

#include <string>

#include "proto/job.pb.h"

namespace cadre::rpc {

// "running", "cancelled"; "starting" of a job that no server has told of yet.
std::string PhaseName(v1::JobPhase phase);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_JOB_PHASE_H_
