// Names a worker and how it ended, for messages. Server, agent and launcher all use these texts.
#ifndef CADRE_RPC_WORKER_END_H_
#define CADRE_RPC_WORKER_END_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::rpc {

// "rank 3 (local rank 1) on n0"; without the node if it is clear which is meant.
std::string WorkerName(int64_t rank, int64_t local_rank, absl::string_view node = "");

// The text that follows the worker's name: "exited with status 7", "was killed by signal 9
// (SIGKILL)", with the error that its program wrote (program_error.h), or else where it was at that
// time, if known: "exited with status 3 at sys.exit(3) (train.py:8 in main)". Not for a worker that
// hangs, because it has not ended.
std::string HowItEnded(const v1::WorkerExit& exit, v1::FailureCause cause,
                       const v1::RankEvidence& at = v1::RankEvidence::default_instance());

// Cuts off what follows these texts in a sentence: the program's error, and where. Other sentences
// are returned whole.
std::string WithoutDetails(absl::string_view sentence);

// The text for processes that SIGKILL has not ended: "outlives SIGKILL: pid 7 is in nfs_wait (state
// D)", and what can end them.
std::string UnkillableText(const v1::WorkerRemains& remains);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_WORKER_END_H_
