#include "rendezvous/job/report.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/text.h"
#include "rendezvous/job/timeline.h"
#include "rendezvous/state/policy.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

std::string ExecText(const JobState& job, const v1::WorkerExit& exit) {
  const std::string error = ErrnoText(exit.exec_errno());
  if (exit.exec_step() == "chdir") {
    return absl::StrCat("cannot enter working directory ", OneLine(job.spec.working_dir(), 256),
                        ": ", error);
  }
  const std::string program =
      job.spec.command().empty() ? "the program" : OneLine(job.spec.command(0), 256);
  if (exit.exec_step().empty() || exit.exec_step() == "exec") {
    return absl::StrCat("cannot start ", program, ": ", error);
  }
  return absl::StrCat("cannot start ", program, ": ", exit.exec_step(), ": ", error);
}

std::string HowItEnded(const JobState& job, const v1::Failure& failure) {
  const v1::WorkerExit& exit = failure.exit();
  if (failure.cause() == v1::EXEC_FAILED) return ExecText(job, exit);
  if (failure.cause() == v1::HANG) {
    const absl::Duration progress = FromProto(job.spec.timeouts().progress());
    return progress > absl::ZeroDuration()
               ? absl::StrCat("made no progress for ", ShortDuration(progress))
               : "made no progress";
  }
  return rpc::HowItEnded(exit, failure.cause());
}

// The names that `here` lacks, at most kFirstFew, and how many there are.
std::pair<std::vector<std::string>, size_t> MissingNodes(const JobState& job,
                                                         const std::vector<std::string>& here) {
  std::set<std::string> known(here.begin(), here.end());
  for (const std::string& name : here) {
    const auto node = job.nodes.find(name);
    if (node != job.nodes.end()) known.insert(node->second.host);
  }
  std::vector<std::string> missing;
  size_t total = 0;
  for (const std::string& name : job.expected_nodes) {
    if (known.count(name) != 0) continue;
    ++total;
    if (missing.size() < kFirstFew) missing.push_back(name);
  }
  return {missing, total};
}

v1::WorkerState StateOf(RankState phase) {
  switch (phase) {
    case RankState::kAssigned:
      return v1::WORKER_STARTING;
    case RankState::kRunning:
      return v1::WORKER_RUNNING;
    case RankState::kSucceeded:
      return v1::WORKER_SUCCEEDED;
    case RankState::kFailed:
      return v1::WORKER_FAILED;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

}  // namespace

v1::Failure WorkerFailure(const JobState& job, const MemberState& member, uint32_t local_rank,
                          const v1::WorkerExit& exit, v1::FailureCause cause) {
  v1::Failure failure;
  const bool said = cause != v1::FAILURE_CAUSE_UNSPECIFIED && v1::FailureCause_IsValid(cause);
  failure.set_cause(said                     ? cause
                    : exit.exec_errno() != 0 ? v1::EXEC_FAILED
                    : exit.out_of_memory()   ? v1::OUT_OF_MEMORY
                                             : v1::CRASH);
  failure.set_rank(member.first_rank + local_rank);
  failure.set_local_rank(local_rank);
  failure.set_node(member.node);
  failure.set_generation(job.generation.number);
  *failure.mutable_exit() = exit;
  failure.mutable_exit()->set_exec_step(OneLine(exit.exec_step(), 64));
  failure.mutable_exit()->set_last_lines(Shortened(exit.last_lines(), kMaxLastLinesBytes));
  failure.mutable_exit()->set_ended_with(OneLine(exit.ended_with(), kMaxEvidenceBytes));
  // Half an error file is no JSON.
  if (exit.error_json().size() > kMaxErrorJsonBytes) failure.mutable_exit()->clear_error_json();
  const std::string who =
      absl::StrCat("rank ", failure.rank(), " (local rank ", local_rank, ") on ", member.node);
  const std::string how = HowItEnded(job, failure);
  failure.set_message(
      Shortened(failure.cause() == v1::EXEC_FAILED
                    ? absl::StrCat(who, ": ", how)
                    : absl::StrCat(who, " ", how, " in generation ", job.generation.number),
                kMaxMessageBytes));
  return failure;
}

v1::RankEvidence CleanEvidence(const v1::RankEvidence& said, const MemberState& member) {
  v1::RankEvidence rank = said;
  rank.set_rank(member.first_rank + said.local_rank());
  rank.set_node(member.node);
  rank.set_summary(OneLine(said.summary(), kMaxEvidenceBytes));
  rank.set_state(OneLine(said.state(), 4));
  rank.set_wchan(OneLine(said.wchan(), 64));
  rank.set_file(OneLine(said.file(), kMaxPathBytes));
  if (said.last_lines().size() > kMaxLastLinesBytes) rank.clear_last_lines();
  return rank;
}

v1::Failure PlainFailure(v1::FailureCause cause, absl::string_view node, uint64_t generation,
                         absl::string_view message) {
  v1::Failure failure;
  failure.set_cause(cause);
  failure.set_rank(-1);
  failure.set_local_rank(-1);
  failure.set_node(std::string(node));
  failure.set_generation(generation);
  failure.set_message(OneLine(message, kMaxMessageBytes));
  return failure;
}

std::string JoinTimeoutText(const JobState& job, const std::vector<std::string>& here) {
  std::vector<std::string> shown(here.begin(), here.begin() + std::min(here.size(), kFirstFew));
  const auto [missing, total] = MissingNodes(job, here);
  const size_t lacking = job.policy.min > here.size() ? job.policy.min - here.size() : 0;
  std::string text =
      absl::StrCat(here.size(), " of ", Count(job.policy.min, "node"), " came within ",
                   ShortDuration(job.policy.join_timeout), ": missing ",
                   total > 0 ? FirstFew(missing, total) : absl::StrCat(lacking));
  if (total == 0 && lacking == 0) {
    text = absl::StrCat(Count(here.size(), "node"), " came within ",
                        ShortDuration(job.policy.join_timeout), ", fewer than a multiple of ",
                        job.policy.unit);
  }
  return here.empty() ? text : absl::StrCat(text, " (here: ", FirstFew(shown, here.size()), ")");
}

std::string RanksNotStarted(const GenerationState& generation) {
  std::vector<std::string> ranks;
  size_t total = 0;
  for (size_t rank = 0; rank < generation.workers.size(); ++rank) {
    if (generation.workers[rank] != RankState::kAssigned) continue;
    ++total;
    if (ranks.size() < kFirstFew) ranks.push_back(absl::StrCat(rank));
  }
  return absl::StrCat(total == 1 ? "rank " : "ranks ", FirstFew(ranks, total));
}

std::string NodesNotStopped(const GenerationState& generation) {
  std::vector<std::string> nodes;
  size_t total = 0;
  for (const MemberState& member : generation.members) {
    if (member.lost || member.cleared) continue;
    ++total;
    if (nodes.size() < kFirstFew) nodes.push_back(member.node);
  }
  return FirstFew(nodes, total);
}

std::string MissingText(const JobState& job, const FormationDecision& decision,
                        const std::vector<std::string>& here) {
  const auto [missing, total] = MissingNodes(job, here);
  return total == 0 ? decision.reason
                    : absl::StrCat(decision.reason, "; missing: ", FirstFew(missing, total));
}

v1::Verdict MakeVerdict(const std::string& name, const JobState& job, v1::JobPhase outcome,
                        int exit_status, absl::string_view message,
                        const std::optional<v1::Failure>& root_cause) {
  v1::Verdict verdict;
  verdict.set_job(name);
  verdict.set_outcome(outcome);
  verdict.set_message(Shortened(message, kMaxMessageBytes));
  verdict.set_exit_status(exit_status);
  if (root_cause.has_value()) *verdict.mutable_root_cause() = *root_cause;
  // A job that ends while it gathers has its last generation among the earlier ones.
  if (job.phase != v1::GATHERING && root_cause.has_value()) {
    for (const v1::Failure& failure : job.generation.collateral) {
      *verdict.add_collateral() = failure;
    }
  }
  for (const v1::Failure& failure : job.earlier) *verdict.add_earlier() = failure;
  verdict.set_restarts(job.counted_restarts);
  verdict.set_generations(job.generations_announced);
  verdict.set_run(job.run);
  return verdict;
}

int NodeRankOf(const JobState& job, const std::string& node) {
  if (job.phase == v1::QUEUED || job.phase == v1::GATHERING) return -1;
  const auto found = job.generation.node_ranks.find(node);
  if (found == job.generation.node_ranks.end()) return -1;
  return job.generation.members[found->second].lost ? -1 : static_cast<int>(found->second);
}

v1::JobStatus MakeStatus(const std::string& name, const JobState& job, const ProgressLog& progress,
                         std::string waiting_for, Shown shown) {
  const bool to_agents = shown == Shown::kToAgents;
  v1::JobStatus status;
  status.set_name(name);
  status.set_phase(job.phase);
  status.set_generation(job.generation.number);
  status.set_nodes_in(job.nodes.size());
  if (!to_agents || job.nodes.size() <= kMaxNodesInPush) {
    for (const auto& [node_name, node] : job.nodes) {
      v1::NodeStatus* entry = status.add_nodes();
      entry->set_name(node_name);
      entry->set_host(node.host);
      entry->set_slots(node.slots);
      const int rank = NodeRankOf(job, node_name);
      entry->set_node_rank(rank);
      entry->set_first_rank(-1);
      if (rank < 0) continue;
      const MemberState& member = job.generation.members[rank];
      entry->set_first_rank(static_cast<int32_t>(member.first_rank));
      for (uint32_t i = 0; shown == Shown::kWhole && i < member.slots; ++i) {
        entry->add_workers(StateOf(job.generation.workers[member.first_rank + i]));
      }
    }
  }
  if (job.phase != v1::QUEUED && job.phase != v1::GATHERING) {
    status.set_world_size(job.generation.workers.size());
    status.set_workers_running(job.generation.running);
    status.set_workers_succeeded(job.generation.succeeded);
    const std::optional<v1::JobProgress> reported = progress.Current(job);
    if (reported.has_value()) *status.mutable_progress() = *reported;
    if (job.phase == v1::STOPPING) status.set_stop_reason(job.generation.stop_reason);
  }
  const auto& generations = job.timeline.generations();
  const auto ended = std::find_if(generations.rbegin(), generations.rend(),
                                  [](const auto& one) { return !one.end_reason().empty(); });
  if (ended != generations.rend()) {
    status.set_ended_generation(ended->generation());
    status.set_end_reason(ended->end_reason());
  }
  status.set_restarts(job.counted_restarts);
  status.set_max_restarts(job.policy.restart_max);
  status.set_waiting_for(std::move(waiting_for));
  if (job.verdict.has_value()) *status.mutable_verdict() = *job.verdict;
  if (to_agents) return status;
  if (shown == Shown::kWhole) *status.mutable_timeline() = MakeTimeline(name, job, progress);
  status.set_run(job.run);
  if (job.user.empty()) return status;
  status.set_user(job.user);
  status.set_priority(job.spec.priority());
  status.set_submission(job.order);
  for (const auto& [node, avoided] : job.avoid) *status.add_avoided() = avoided;
  return status;
}

std::string ExplainText(const JobState& job, const std::string& waiting_for) {
  const std::string waits = waiting_for.empty() ? "" : absl::StrCat("; waits for ", waiting_for);
  if (job.phase == v1::QUEUED) return absl::StrCat("in the queue", waits);
  if (job.phase == v1::GATHERING) return absl::StrCat("gathering nodes", waits);
  const GenerationState& generation = job.generation;
  std::string text = absl::StrCat("generation ", generation.number);
  if (job.phase == v1::STOPPING) {
    absl::StrAppend(&text, " is being stopped: ", generation.stop_reason);
  } else {
    absl::StrAppend(&text, " runs on ", Count(generation.members.size(), "node"), ": ",
                    generation.running, " of ", Count(generation.workers.size(), "worker"), " up, ",
                    generation.succeeded, " done");
  }
  absl::StrAppend(&text, waits);
  std::vector<std::string> spares;
  size_t total = 0;
  for (const auto& [name, node] : job.nodes) {
    if (NodeRankOf(job, name) >= 0) continue;
    ++total;
    if (spares.size() < kFirstFew) spares.push_back(name);
  }
  if (total > 0) absl::StrAppend(&text, "; spare: ", FirstFew(spares, total));
  return text;
}

v1::Assign MakeAssign(const JobState& job, uint32_t node_rank) {
  const GenerationState& generation = job.generation;
  const MemberState& member = generation.members[node_rank];
  v1::Assign assign;
  assign.set_node_rank(node_rank);
  assign.set_nodes(generation.members.size());
  assign.set_first_rank(member.first_rank);
  assign.set_local_world_size(member.slots);
  assign.set_world_size(generation.workers.size());
  assign.set_master_addr(generation.master_addr);
  assign.set_master_port(generation.master_port);
  assign.set_restart_count(generation.restart_count);
  assign.set_max_restarts(job.policy.restart_max);
  assign.set_run(job.run);
  return assign;
}

v1::Stop MakeStop(const JobState& job, const std::string& node) {
  v1::Stop stop;
  stop.set_reason(job.generation.stop_reason);
  *stop.mutable_grace() = ToProto(job.policy.stop_grace);
  stop.set_rejoin(job.generation.rejoin);
  const std::optional<v1::Failure>& root = job.generation.root_cause;
  if (stop.rejoin() && root.has_value() && root->cause() == v1::HANG && root->node() == node) {
    stop.add_replace(root->local_rank());
  }
  return stop;
}

}  // namespace cadre::job
