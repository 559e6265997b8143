// Failures: what a worker's exit means, and what else a generation or a job can end from, in words
// for people and without anything that a peer must not put into a terminal or a record. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_FAILURE_H_
#define CADRE_RENDEZVOUS_JOB_FAILURE_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

constexpr size_t kMaxLastLinesBytes = 4 << 10;

// Returns the failure that a worker's exit means, without anything that a peer must not put into a
// terminal or a record.
v1::Failure WorkerFailure(const state::Job& job, const saved::Member& member,
                          const v1::WorkerExited& exited);

// Returns a node's evidence of one of its workers, without what must not reach a terminal or a
// record.
v1::RankEvidence CleanEvidence(const v1::RankEvidence& reported, const saved::Member& member);

// Returns a failure that is not a worker's exit: a lost node, a timeout, a cancelled job.
v1::Failure PlainFailure(v1::FailureCause cause, absl::string_view node, uint64_t generation,
                         absl::string_view message);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_FAILURE_H_
