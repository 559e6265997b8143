// Which worker it was and how it ended, in words. The one place that server, agent and launcher
// have them from.
#ifndef CADRE_RPC_WORKER_END_H_
#define CADRE_RPC_WORKER_END_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::rpc {

// "rank 3 (local rank 1) on n0"; without a node where that is clear.
std::string WorkerName(int64_t rank, int64_t local_rank, absl::string_view node = "");

// Follows the name of the worker: "exited with status 7", "was killed by signal 9 (SIGKILL)", with
// what its program said of it (program_error.h), or else where it was then, if that is known:
// "exited with status 3 at sys.exit(3) (train.py:8 in main)". Not for one that hangs, which has not
// ended.
std::string HowItEnded(const v1::WorkerExit& exit, v1::FailureCause cause,
                       const v1::RankEvidence& at = v1::RankEvidence::default_instance());

// A sentence with these words without what follows them: what the program said, and where. Other
// sentences stay whole.
std::string WithoutDetails(absl::string_view sentence);

// Likewise, of one that SIGKILL has not ended: "outlives SIGKILL: pid 7 is in nfs_wait (state D)",
// and what can end it.
std::string WhatRemains(const v1::WorkerRemains& remains);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_WORKER_END_H_
