// How failures and verdicts of a job read, and what its nodes are told. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_REPORT_H_
#define CADRE_RENDEZVOUS_JOB_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/job.pb.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

constexpr size_t kMaxLastLinesBytes = 4 << 10;

// What a worker's end means, cleaned of what a peer must not put into a terminal or a record.
v1::Failure WorkerFailure(const state::Job& job, const saved::Member& member,
                          const v1::WorkerExited& exited);

// What a node says of one of its workers, without what must not reach a terminal or a record.
v1::RankEvidence CleanEvidence(const v1::RankEvidence& said, const saved::Member& member);

// A failure that is nobody's exit: a lost node, a timeout, a cancelled job.
v1::Failure PlainFailure(v1::FailureCause cause, absl::string_view node, uint64_t generation,
                         absl::string_view message);

v1::Verdict MakeVerdict(const std::string& name, const state::Job& job, v1::JobPhase outcome,
                        int exit_status, absl::string_view message,
                        const std::optional<v1::Failure>& root_cause);

// "ended (failed): WHY"; a cancelled job may have no reason.
std::string EndText(const v1::Verdict& verdict);

// Position of a node in the current generation, or -1 for a spare.
int NodeRankOf(const state::Job& job, const std::string& node);

// The record of a worker's end. No failure: it has succeeded.
v1::Record WorkerEnded(const state::Job& job, uint32_t rank,
                       const std::optional<v1::Failure>& failure, MonoTime at);

// The record that no worker of the generation is left on the node. 0: of another server's.
v1::Record NodeCleared(const std::string& node, uint64_t generation, uint32_t held_port,
                       MonoTime at);

// That the generation's nodes run the program under different versions of Python or PyTorch, in one
// line; empty: as far as they say they do not.
std::string VersionsDiffer(const state::Job& job);

// The orders that announce and end a generation to one of its nodes.
v1::Assign MakeAssign(const state::Job& job, uint32_t node_rank);
v1::Stop MakeStop(const state::Job& job, const std::string& node);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_REPORT_H_
