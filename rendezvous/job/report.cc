#include "rendezvous/job/report.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/text.h"
#include "rendezvous/state/policy.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

std::string ExecText(const state::Job& job, const v1::WorkerExit& exit) {
  const std::string error = ErrnoText(exit.exec_errno());
  if (exit.exec_step() == "chdir") {
    return absl::StrCat("cannot enter working directory ",
                        OneLine(job.saved.spec().working_dir(), 256), ": ", error);
  }
  const std::string program = job.saved.spec().command().empty()
                                  ? "the program"
                                  : OneLine(job.saved.spec().command(0), 256);
  if (exit.exec_step().empty() || exit.exec_step() == "exec") {
    return absl::StrCat("cannot start ", program, ": ", error);
  }
  return absl::StrCat("cannot start ", program, ": ", exit.exec_step(), ": ", error);
}

std::string HowItEnded(const state::Job& job, const v1::Failure& failure) {
  const v1::WorkerExit& exit = failure.exit();
  if (failure.cause() == v1::EXEC_FAILED) return ExecText(job, exit);
  if (failure.cause() == v1::HANG) {
    const absl::Duration progress = FromProto(job.saved.spec().timeouts().progress());
    return progress > absl::ZeroDuration()
               ? absl::StrCat("made no progress for ", ShortDuration(progress))
               : "made no progress";
  }
  return rpc::HowItEnded(exit, failure.cause());
}

// The names that `here` lacks, at most kFirstFew, and how many there are.
std::pair<std::vector<std::string>, size_t> MissingNodes(const state::Job& job,
                                                         const std::vector<std::string>& here) {
  std::set<std::string> known(here.begin(), here.end());
  for (const std::string& name : here) {
    const auto node = job.nodes.find(name);
    if (node != job.nodes.end()) known.insert(node->second.node().host());
  }
  std::vector<std::string> missing;
  size_t total = 0;
  for (const std::string& name : job.saved.expected_nodes()) {
    if (known.count(name) != 0) continue;
    ++total;
    if (missing.size() < kFirstFew) missing.push_back(name);
  }
  return {missing, total};
}

v1::WorkerState StateOf(saved::RankState rank) {
  switch (rank) {
    case saved::RANK_ASSIGNED:
      return v1::WORKER_STARTING;
    case saved::RANK_RUNNING:
      return v1::WORKER_RUNNING;
    case saved::RANK_SUCCEEDED:
      return v1::WORKER_SUCCEEDED;
    case saved::RANK_FAILED:
      return v1::WORKER_FAILED;
    default:
      break;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

}  // namespace

v1::Failure WorkerFailure(const state::Job& job, const saved::Member& member, uint32_t local_rank,
                          const v1::WorkerExit& exit, v1::FailureCause cause) {
  v1::Failure failure;
  const bool said = cause != v1::FAILURE_CAUSE_UNSPECIFIED && v1::FailureCause_IsValid(cause);
  failure.set_cause(said                     ? cause
                    : exit.exec_errno() != 0 ? v1::EXEC_FAILED
                    : exit.out_of_memory()   ? v1::OUT_OF_MEMORY
                                             : v1::CRASH);
  failure.set_rank(member.first_rank() + local_rank);
  failure.set_local_rank(local_rank);
  failure.set_node(member.node());
  failure.set_generation(job.generation.number());
  *failure.mutable_exit() = exit;
  failure.mutable_exit()->set_exec_step(OneLine(exit.exec_step(), 64));
  failure.mutable_exit()->set_last_lines(Shortened(exit.last_lines(), kMaxLastLinesBytes));
  failure.mutable_exit()->set_ended_with(OneLine(exit.ended_with(), kMaxEvidenceBytes));
  // Half an error file is no JSON.
  if (exit.error_json().size() > kMaxErrorJsonBytes) failure.mutable_exit()->clear_error_json();
  const std::string who = rpc::WorkerName(failure.rank(), local_rank, member.node());
  const std::string how = HowItEnded(job, failure);
  failure.set_message(
      Shortened(failure.cause() == v1::EXEC_FAILED
                    ? absl::StrCat(who, ": ", how)
                    : absl::StrCat(who, " ", how, " in generation ", job.generation.number()),
                state::kMaxMessageBytes));
  return failure;
}

v1::RankEvidence CleanEvidence(const v1::RankEvidence& said, const saved::Member& member) {
  v1::RankEvidence rank = said;
  rank.set_rank(member.first_rank() + said.local_rank());
  rank.set_node(member.node());
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
  failure.set_message(OneLine(message, state::kMaxMessageBytes));
  return failure;
}

std::string JoinTimeoutText(const state::Job& job, const std::vector<std::string>& here) {
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

std::string RanksNotStarted(const state::Generation& generation) {
  std::vector<std::string> ranks;
  size_t total = 0;
  for (uint32_t rank = 0; rank < generation.world_size(); ++rank) {
    if (generation.worker(rank) != saved::RANK_ASSIGNED) continue;
    ++total;
    if (ranks.size() < kFirstFew) ranks.push_back(absl::StrCat(rank));
  }
  return absl::StrCat(total == 1 ? "rank " : "ranks ", FirstFew(ranks, total));
}

std::string NodesNotStopped(const state::Generation& generation) {
  std::vector<std::string> nodes;
  size_t total = 0;
  for (const saved::Member& member : generation.saved.members()) {
    if (member.lost() || member.cleared()) continue;
    ++total;
    if (nodes.size() < kFirstFew) nodes.push_back(member.node());
  }
  return FirstFew(nodes, total);
}

std::string MissingText(const state::Job& job, const FormationDecision& decision,
                        const std::vector<std::string>& here) {
  const auto [missing, total] = MissingNodes(job, here);
  return total == 0 ? decision.reason
                    : absl::StrCat(decision.reason, "; missing: ", FirstFew(missing, total));
}

v1::Verdict MakeVerdict(const std::string& name, const state::Job& job, v1::JobPhase outcome,
                        int exit_status, absl::string_view message,
                        const std::optional<v1::Failure>& root_cause) {
  v1::Verdict verdict;
  verdict.set_job(name);
  verdict.set_outcome(outcome);
  verdict.set_message(Shortened(message, state::kMaxMessageBytes));
  verdict.set_exit_status(exit_status);
  if (root_cause.has_value()) *verdict.mutable_root_cause() = *root_cause;
  // A job that ends while it gathers has its last generation among the earlier ones.
  if (job.phase() != v1::GATHERING && root_cause.has_value()) {
    *verdict.mutable_collateral() = job.generation.saved.stop().collateral();
  }
  *verdict.mutable_earlier() = job.saved.earlier();
  verdict.set_restarts(job.saved.restarts().counted());
  verdict.set_generations(job.saved.generations());
  verdict.set_run(job.saved.run());
  return verdict;
}

std::string EndText(const v1::Verdict& verdict) {
  return absl::StrCat("ended (", v1::JobPhase_Name(verdict.outcome()), ")",
                      verdict.message().empty() ? "" : ": ", verdict.message());
}

int NodeRankOf(const state::Job& job, const std::string& node) {
  if (job.phase() == v1::QUEUED || job.phase() == v1::GATHERING) return -1;
  const auto found = job.generation.node_ranks.find(node);
  if (found == job.generation.node_ranks.end()) return -1;
  return job.generation.member(found->second).lost() ? -1 : static_cast<int>(found->second);
}

v1::JobStatus MakeStatus(const std::string& name, const state::Job& job,
                         const ProgressLog& progress, std::string waiting_for, Shown shown) {
  const bool to_agents = shown == Shown::kToAgents;
  v1::JobStatus status;
  status.set_name(name);
  status.set_phase(job.phase());
  status.set_generation(job.generation.number());
  status.set_nodes_in(job.nodes.size());
  if (!to_agents || job.nodes.size() <= kMaxNodesInPush) {
    for (const auto& [node_name, node] : job.nodes) {
      v1::NodeStatus* entry = status.add_nodes();
      entry->set_name(node_name);
      entry->set_host(node.node().host());
      entry->set_slots(node.node().slots());
      const int rank = NodeRankOf(job, node_name);
      entry->set_node_rank(rank);
      entry->set_first_rank(-1);
      if (rank < 0) continue;
      const saved::Member& member = job.generation.member(rank);
      entry->set_first_rank(static_cast<int32_t>(member.first_rank()));
      for (uint32_t i = 0; shown == Shown::kWhole && i < member.slots(); ++i) {
        entry->add_workers(StateOf(job.generation.worker(member.first_rank() + i)));
      }
    }
  }
  if (job.phase() != v1::QUEUED && job.phase() != v1::GATHERING) {
    status.set_world_size(job.generation.world_size());
    status.set_workers_running(job.generation.running);
    status.set_workers_succeeded(job.generation.succeeded);
    const std::optional<v1::JobProgress> reported = progress.Current(job);
    if (reported.has_value()) *status.mutable_progress() = *reported;
    if (job.phase() == v1::STOPPING) status.set_stop_reason(job.generation.saved.stop().reason());
  }
  const auto& generations = job.saved.timeline().generations();
  const auto ended = std::find_if(generations.rbegin(), generations.rend(),
                                  [](const auto& one) { return !one.end_reason().empty(); });
  if (ended != generations.rend()) {
    status.set_ended_generation(ended->generation());
    status.set_end_reason(ended->end_reason());
  }
  status.set_restarts(job.saved.restarts().counted());
  status.set_max_restarts(job.policy.restart_max);
  status.set_waiting_for(std::move(waiting_for));
  if (job.saved.has_verdict()) *status.mutable_verdict() = job.saved.verdict();
  if (to_agents) return status;
  if (shown == Shown::kWhole) *status.mutable_timeline() = MakeTimeline(name, job, progress);
  status.set_run(job.saved.run());
  if (job.user().empty()) return status;
  status.set_user(job.user());
  status.set_priority(job.saved.spec().priority());
  status.set_submission(job.saved.submission().order());
  *status.mutable_avoided() = job.saved.submission().avoided();
  return status;
}

std::string ExplainText(const state::Job& job, const std::string& waiting_for) {
  const std::string waits = waiting_for.empty() ? "" : absl::StrCat("; waits for ", waiting_for);
  if (job.phase() == v1::QUEUED) return absl::StrCat("in the queue", waits);
  if (job.phase() == v1::GATHERING) return absl::StrCat("gathering nodes", waits);
  const state::Generation& generation = job.generation;
  std::string text = absl::StrCat("generation ", generation.number());
  if (job.phase() == v1::STOPPING) {
    absl::StrAppend(&text, " is being stopped: ", generation.saved.stop().reason());
  } else {
    absl::StrAppend(&text, " runs on ", Count(generation.nodes(), "node"), ": ", generation.running,
                    " of ", Count(generation.world_size(), "worker"), " up, ", generation.succeeded,
                    " done");
  }
  return absl::StrCat(text, waits);
}

v1::Record WorkerEnded(const state::Job& job, uint32_t rank,
                       const std::optional<v1::Failure>& failure, MonoTime at) {
  v1::Record record;
  record.mutable_worker_ended()->set_generation(job.generation.number());
  record.mutable_worker_ended()->set_rank(rank);
  if (failure.has_value()) *record.mutable_worker_ended()->mutable_failure() = *failure;
  record.mutable_worker_ended()->set_at_us(at.micros());
  return record;
}

v1::Assign MakeAssign(const state::Job& job, uint32_t node_rank) {
  const state::Generation& generation = job.generation;
  const saved::Member& member = generation.member(node_rank);
  v1::Assign assign;
  assign.set_node_rank(node_rank);
  assign.set_nodes(generation.nodes());
  assign.set_first_rank(member.first_rank());
  assign.set_local_world_size(member.slots());
  assign.set_world_size(generation.world_size());
  assign.set_master_addr(generation.saved.master_addr());
  assign.set_master_port(generation.saved.master_port());
  assign.set_restart_count(generation.saved.restart_count());
  assign.set_max_restarts(job.policy.restart_max);
  assign.set_run(job.saved.run());
  return assign;
}

v1::Stop MakeStop(const state::Job& job, const std::string& node) {
  v1::Stop stop;
  stop.set_reason(job.generation.saved.stop().reason());
  *stop.mutable_grace() = ToProto(job.policy.stop_grace);
  stop.set_rejoin(job.generation.saved.stop().rejoin());
  const v1::Failure* root = job.generation.root_cause();
  if (stop.rejoin() && root != nullptr && root->cause() == v1::HANG && root->node() == node) {
    stop.add_replace(root->local_rank());
  }
  return stop;
}

}  // namespace cadre::job
