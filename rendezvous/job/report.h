// What people are told: failures in one line, what a job waits for, verdicts, statuses. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_REPORT_H_
#define CADRE_RENDEZVOUS_JOB_REPORT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/job/formation.h"
#include "rendezvous/job/progress_log.h"
#include "rendezvous/state/policy.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

constexpr size_t kMaxLastLinesBytes = 4 << 10;
constexpr size_t kMaxErrorJsonBytes = 64 << 10;
constexpr size_t kMaxEvidenceBytes = 512;
constexpr size_t kMaxPathBytes = 1024;
// The nodes of a larger job are told the number of nodes, not their names.
constexpr size_t kMaxNodesInPush = 64;

// What a worker's end means, cleaned of what a peer must not put into a terminal or a record.
// `cause` is how the agent classified it.
v1::Failure WorkerFailure(const state::Job& job, const saved::Member& member, uint32_t local_rank,
                          const v1::WorkerExit& exit, v1::FailureCause cause);

// What a node says of one of its workers, without what must not reach a terminal or a record.
v1::RankEvidence CleanEvidence(const v1::RankEvidence& said, const saved::Member& member);

// A failure that is nobody's exit: a lost node, a timeout, a cancelled job.
v1::Failure PlainFailure(v1::FailureCause cause, absl::string_view node, uint64_t generation,
                         absl::string_view message);

// "1 of 2 nodes came within 10m: missing 1 (here: a)", with names where they are known.
std::string JoinTimeoutText(const state::Job& job, const std::vector<std::string>& here);

// The ranks that have not started, or a list of the nodes that have not stopped: three and a count.
std::string RanksNotStarted(const state::Generation& generation);
std::string NodesNotStopped(const state::Generation& generation);
// "no worker of ..." for a job that gathers: what is missing, with names where they are known.
std::string MissingText(const state::Job& job, const FormationDecision& decision,
                        const std::vector<std::string>& here);

v1::Verdict MakeVerdict(const std::string& name, const state::Job& job, v1::JobPhase outcome,
                        int exit_status, absl::string_view message,
                        const std::optional<v1::Failure>& root_cause);

// "ended (FAILED): WHY"; a cancelled job may have no reason.
std::string EndText(const v1::Verdict& verdict);

// How much of a job is shown: what its agents are told; with what a list of jobs has; with its
// workers and its timeline.
enum class Shown { kToAgents, kInList, kWhole };
v1::JobStatus MakeStatus(const std::string& name, const state::Job& job,
                         const ProgressLog& progress, std::string waiting_for, Shown shown);

// One line on what a job that lives does and waits for, without its spares.
std::string ExplainText(const state::Job& job, const std::string& waiting_for);

// Position of a node in the current generation, or -1 for a spare.
int NodeRankOf(const state::Job& job, const std::string& node);

// The record of a worker's end. No failure: it has succeeded.
v1::Record WorkerEnded(const state::Job& job, uint32_t rank,
                       const std::optional<v1::Failure>& failure, MonoTime at);

// The orders that announce and end a generation to one of its nodes.
v1::Assign MakeAssign(const state::Job& job, uint32_t node_rank);
v1::Stop MakeStop(const state::Job& job, const std::string& node);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_REPORT_H_
