#include "rendezvous/job/status.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/job/orders.h"
#include "rendezvous/job/progress_and_usage.h"
#include "rendezvous/job/verdict.h"
#include "rendezvous/state/policy.h"
#include "rendezvous/state/state_limits.h"
#include "rpc/job_progress.h"
#include "rpc/node_memory.h"
#include "rpc/versions.h"

namespace cadre::job {
namespace {

// The nodes of a larger job are sent the number of nodes, not their names.
constexpr size_t kMaxNodesInPush = 64;

// Returns the expected names that `here` lacks, at most kFirstFew, and how many there are.
std::pair<std::vector<std::string>, size_t> MissingNodes(const state::Job& job,
                                                         const std::vector<std::string>& here) {
  if (!KnowsExpectedNodes(job)) return {};
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

// Returns the workers of one node, or of all, that SIGKILL does not end; empty if none.
std::string UnkillableText(const NodeConnection& connection) {
  std::vector<std::string> workers;
  for (const auto& [local_rank, text] : connection.unkillable) workers.push_back(text);
  return FirstFew(workers, workers.size());
}

std::string UnkillableText(const JobView& view) {
  std::vector<std::string> workers;
  for (const auto& [node, connection] : view.volatile_state.connections.all()) {
    for (const auto& [local_rank, text] : connection.unkillable) workers.push_back(text);
  }
  return FirstFew(workers, workers.size());
}

// Returns the nodes that are in no generation: in reserve, or out because of processes that could
// not be killed.
std::string SparesText(const JobView& view) {
  std::vector<std::string> spares;
  size_t total = 0;
  for (const auto& [name, connection] : view.volatile_state.connections.all()) {
    if (NodeRankOf(view.job, name) >= 0 || !connection.unkillable.empty()) continue;
    ++total;
    if (spares.size() < kFirstFew) spares.push_back(name);
  }
  const std::string unkillable = UnkillableText(view);
  return absl::StrCat(total == 0 ? "" : "; spare: ", total == 0 ? "" : FirstFew(spares, total),
                      unkillable.empty() ? "" : "; ", unkillable);
}

// Returns what is missing while the job gathers, with names if they are known.
std::string MissingText(const state::Job& job, const FormationDecision& decision,
                        const std::vector<std::string>& here) {
  const auto [missing, total] = MissingNodes(job, here);
  return total == 0 ? decision.reason
                    : absl::StrCat(decision.reason, "; missing: ", FirstFew(missing, total));
}

// Returns the first three nodes that have not stopped, and a count.
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

// Returns "; no step for 25s: rank 1 at hang.py:7, 3 ranks wait for it in all_reduce"; empty while
// steps are reported.
std::string StandstillText(const JobView& view, MonoTime at) {
  const std::optional<Standstill>& standstill = view.volatile_state.suspects.standstill;
  const std::optional<v1::JobProgress> progress =
      view.volatile_state.progress.Current(view.job, at);
  const std::string quiet = progress.has_value() ? rpc::StallText(*progress) : std::string();
  if (!standstill.has_value()) return quiet.empty() ? "" : absl::StrCat("; ", quiet);
  return absl::StrCat("; ", quiet.empty() ? "no progress" : quiet, ": ", standstill->text);
}

// Returns the verdict without what is only shown for a single job: last lines, evidence, other
// failures.
v1::Verdict VerdictInList(const v1::Verdict& whole) {
  v1::Verdict verdict;
  verdict.set_job(whole.job());
  verdict.set_outcome(whole.outcome());
  verdict.set_message(whole.message());
  verdict.set_exit_status(whole.exit_status());
  verdict.set_restarts(whole.restarts());
  verdict.set_generations(whole.generations());
  verdict.set_run(whole.run());
  if (!whole.has_root_cause()) return verdict;
  v1::Failure* root_cause = verdict.mutable_root_cause();
  *root_cause = whole.root_cause();
  root_cause->clear_message();  // the verdict's
  root_cause->clear_evidence();
  if (!root_cause->has_exit()) return verdict;
  root_cause->mutable_exit()->clear_last_lines();
  root_cause->mutable_exit()->clear_error_json();
  return verdict;
}

// Whether each node is listed.
bool ShowsNodes(const state::Job& job, StatusDetail shown) {
  if (shown == StatusDetail::kInList) return !state::HasEnded(job.phase());
  return shown == StatusDetail::kFull || job.nodes.size() <= kMaxNodesInPush;
}

// Adds the job's nodes; the states of their workers only to a full status.
void AddNodes(const JobView& view, StatusDetail shown, v1::JobStatus& status) {
  const state::Job& job = view.job;
  const bool to_agents = shown == StatusDetail::kForAgents;
  for (const auto& [node_name, node] : job.nodes) {
    v1::NodeStatus* entry = status.add_nodes();
    entry->set_name(node_name);
    entry->set_host(node.node().host());
    entry->set_slots(node.node().slots());
    const NodeConnection* connection = view.volatile_state.connections.Find(node_name);
    if (connection != nullptr) entry->set_remains(UnkillableText(*connection));
    if (connection != nullptr && connection->stream.has_value() && !to_agents) {
      entry->set_version(rpc::OtherVersionText(connection->version));
    }
    const int rank = NodeRankOf(job, node_name);
    entry->set_node_rank(rank);
    entry->set_first_rank(-1);
    if (rank < 0) continue;
    const saved::Member& member = job.generation.member(rank);
    entry->set_first_rank(static_cast<int32_t>(member.first_rank()));
    if (shown == StatusDetail::kFull) {
      entry->set_warm(member.warm());
      entry->set_why_plain(member.why_plain());
      if (member.has_imports()) *entry->mutable_imports() = member.imports();
    }
    for (uint32_t i = 0; shown == StatusDetail::kFull && i < member.slots(); ++i) {
      entry->add_workers(StateOf(job.generation.worker(member.first_rank() + i)));
    }
  }
}

// Sets how the last generation that is over has ended.
void SetLastEnd(const state::Job& job, v1::JobStatus& status) {
  const auto& generations = job.saved.timeline().generations();
  const auto ended = std::find_if(generations.rbegin(), generations.rend(),
                                  [](const auto& one) { return !one.end_reason().empty(); });
  if (ended != generations.rend()) {
    status.set_ended_generation(ended->generation());
    status.set_end_reason(ended->end_reason());
  }
}

void SetTimes(const JobView& view, v1::JobStatus& status) {
  const state::Job& job = view.job;
  const saved::JobTimes& times = job.saved.times();
  const auto unix_ms = [&](int64_t at_us) {
    return at_us == 0 ? 0 : view.context.config.unix_ms_at_zero + at_us / 1000;
  };
  if (job.user().empty()) {
    status.set_began_unix_ms(unix_ms(times.created_us()));
  } else {
    status.set_submitted_unix_ms(unix_ms(times.submitted_us()));
    if (job.phase() != v1::QUEUED) status.set_began_unix_ms(unix_ms(times.began_us()));
  }
  status.set_ended_unix_ms(unix_ms(times.ended_us()));
  if (job.policy.total_timeout != absl::InfiniteDuration()) {
    status.set_limit_us(absl::ToInt64Microseconds(job.policy.total_timeout));
  }
}

// Returns what the spec asks for on so many nodes; 0 for what depends on the node.
v1::Part AskedFor(const v1::JobSpec& spec, uint32_t nodes) {
  v1::Part asked;
  if (spec.workers_per_node().kind() != v1::WorkersPerNode::COUNT &&
      spec.workers_per_node().kind() != v1::WorkersPerNode::KIND_UNSPECIFIED) {
    return asked;
  }
  const uint32_t each = std::max(spec.workers_per_node().count(), 1u);
  asked.set_workers(each * nodes);
  asked.set_cpus(each * std::max(spec.resources().cpus_per_worker(), 1u) * nodes);
  asked.set_gpus(each * spec.resources().gpus_per_worker() * nodes);
  asked.set_memory(uint64_t{nodes} * rpc::JobMemory(spec.resources().memory_per_worker(), each));
  return asked;
}

// Returns what the job has on all its nodes; of one that has none, what it asks for or had.
v1::Part SharesOf(const JobView& view, const v1::JobStatus& status) {
  const state::Job& job = view.job;
  if (status.allocated().empty() || state::HasEnded(job.phase())) {
    const uint32_t nodes =
        status.allocated().empty() ? status.min_nodes() : status.allocated_size();
    return AskedFor(job.saved.spec(), nodes);
  }
  v1::Part all;
  for (const auto& [id, allocation] : view.context.state.cluster.allocations) {
    const v1::Part& part = allocation.part();
    if (allocation.taken_back() || part.job() != job.name()) continue;
    all.set_workers(all.workers() + part.workers());
    all.set_cpus(all.cpus() + part.cpus());
    all.set_gpus(all.gpus() + part.gpus());
    all.set_memory(all.memory() + part.memory());
  }
  return all;
}

// Sets what the job asks for and has in the cluster, and what tells it from others there.
// `allocated` is set.
void SetSubmitted(const JobView& view, v1::JobStatus& status) {
  const v1::JobSpec& spec = view.job.saved.spec();
  const saved::Submission& submission = view.job.saved.submission();
  status.set_min_nodes(std::max(spec.nodes().min(), 1u));
  status.set_max_nodes(std::max(spec.nodes().max(), status.min_nodes()));
  const v1::Part shares = SharesOf(view, status);
  status.set_workers(shares.workers());
  status.set_cpus(shares.cpus());
  status.set_gpus(shares.gpus());
  status.set_memory(shares.memory());
  status.set_command(state::CommandText(view.job));
  status.set_working_dir(spec.working_dir());
  status.set_stdout_file(spec.logs().stdout_file());
  status.set_stderr_file(spec.logs().stderr_file());
  status.set_held(submission.held());
  if (spec.has_queue()) *status.mutable_queue() = spec.queue();
  if (spec.has_batch()) {
    status.set_batch_name(spec.batch().name().empty() ? view.job.submitted_name()
                                                      : spec.batch().name());
  }
  *status.mutable_placement()->mutable_nodes() = spec.placement().nodes();
  *status.mutable_placement()->mutable_exclude() = spec.placement().exclude();
  *status.mutable_placement()->mutable_labels() = spec.placement().labels();
  status.set_no_requeue(!view.job.policy.requeue);
  status.set_array(submission.array());
  status.set_array_index(submission.array_index());
  status.set_array_at_once(submission.array_at_once());
  status.set_array_size(submission.array_size());
}

}  // namespace

std::string JoinTimeoutText(const JobView& view, const std::string& cluster_waits) {
  const state::Job& job = view.job;
  const std::vector<std::string> here = ReadyNodes(view);
  std::vector<std::string> shown(here.begin(), here.begin() + std::min(here.size(), kFirstFew));
  const auto [missing, total] = MissingNodes(job, here);
  const size_t lacking = job.policy.min > here.size() ? job.policy.min - here.size() : 0;
  std::string text =
      absl::StrCat(here.size(), " of ", Count(job.policy.min, "node"), " joined within ",
                   ShortDuration(job.policy.join_timeout), ": missing ",
                   total > 0 ? FirstFew(missing, total) : absl::StrCat(lacking));
  if (total == 0 && lacking == 0) {
    text = absl::StrCat(Count(here.size(), "node"), " joined within ",
                        ShortDuration(job.policy.join_timeout), ", fewer than a multiple of ",
                        job.policy.unit);
  }
  if (!here.empty()) absl::StrAppend(&text, " (joined: ", FirstFew(shown, here.size()), ")");
  const std::string unkillable = UnkillableText(view);
  return absl::StrCat(text, unkillable.empty() ? "" : "; ", unkillable,
                      cluster_waits.empty() ? "" : "; it waited for ", cluster_waits);
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

std::string WaitingFor(const JobView& view, const std::string& cluster_waits, MonoTime at) {
  const state::Job& job = view.job;
  const auto left = [&view, at](MonoTime until) {
    return view.context.clock.can_save()
               ? absl::StrCat(", ", ShortDuration(until - at), " left")
               : std::string("; the server cannot save its state at present");
  };
  switch (job.phase()) {
    case v1::QUEUED:
      return cluster_waits;
    case v1::GATHERING: {
      if (job.saved.submission().requeued()) return cluster_waits;
      const FormationDecision decision = DecideFormation(GatheringOf(view), job.policy, at);
      const std::string unkillable = UnkillableText(view);
      const bool backs_off = at < view.context.clock.FromRecord(job.saved.times().not_before_us());
      return absl::StrCat(cluster_waits.empty() || backs_off
                              ? MissingText(job, decision, ReadyNodes(view))
                              : cluster_waits,
                          decision.again_at == MonoTime::Never() ? "" : left(decision.again_at),
                          view.volatile_state.refusal.empty() ? "" : "; ",
                          view.volatile_state.refusal, unkillable.empty() ? "" : "; ", unkillable);
    }
    case v1::RUNNING:
      if (!view.volatile_state.suspects.victims.failures.empty()) {
        const Victims& victims = view.volatile_state.suspects.victims;
        return absl::StrCat("the exit report of the rank that rank ", victims.failures[0].rank(),
                            " lost", left(victims.fails_at));
      }
      if (AllStarted(job.generation)) return "";
      return absl::StrCat(Count(job.generation.world_size() - job.generation.started, "worker"),
                          " to start (", RanksNotStarted(job.generation), ")",
                          left(StartDeadline(view)));
    case v1::STOPPING: {
      // Workers have the grace, in which those that go on may still rejoin; the margin after it is
      // for their nodes to report that they are gone.
      const MonoTime grace_ends = StopDeadline(view) + -view.context.config.stop_margin;
      const bool has_grace = at < grace_ends;
      const bool may_come = job.generation.saved.stop().rejoin() && has_grace;
      return absl::StrCat("workers on ", NodesNotStopped(job.generation),
                          may_come ? " to stop or to rejoin" : " to stop",
                          left(has_grace ? grace_ends : StopDeadline(view)));
    }
    default:
      return "";
  }
}

v1::JobStatus StatusOf(const std::string& name, const JobView& view,
                       const std::string& cluster_waits, MonoTime at, StatusDetail shown) {
  const state::Job& job = view.job;
  const ProgressLog& progress = view.volatile_state.progress;
  const bool to_agents = shown == StatusDetail::kForAgents;
  v1::JobStatus status;
  status.set_name(name);
  status.set_phase(job.phase());
  status.set_generation(job.generation.number());
  status.set_nodes_in(job.nodes.size());
  if (ShowsNodes(job, shown)) AddNodes(view, shown, status);
  if (job.phase() != v1::QUEUED && job.phase() != v1::GATHERING) {
    status.set_world_size(job.generation.world_size());
    status.set_workers_running(job.generation.running);
    status.set_workers_succeeded(job.generation.succeeded);
    const std::optional<v1::JobProgress> reported = progress.Current(job, at);
    if (reported.has_value()) *status.mutable_progress() = *reported;
    const std::optional<Standstill>& standstill = view.volatile_state.suspects.standstill;
    if (standstill.has_value()) status.set_stall(standstill->text);
    if (job.phase() == v1::STOPPING) status.set_stop_reason(job.generation.saved.stop().reason());
  }
  SetLastEnd(job, status);
  status.set_restarts(job.saved.restarts().counted());
  status.set_max_restarts(job.policy.restart_max);
  status.set_waiting_for(WaitingFor(view, cluster_waits, view.context.clock.FromHost(at)));
  if (WantsCheckpoint(view)) status.set_checkpoint_wanted(true);
  if (job.saved.has_verdict()) {
    *status.mutable_verdict() =
        shown == StatusDetail::kInList ? VerdictInList(job.saved.verdict()) : job.saved.verdict();
  }
  if (to_agents) return status;
  if (shown == StatusDetail::kFull) *status.mutable_timeline() = MakeTimeline(name, job, progress);
  status.set_run(job.saved.run());
  status.set_started_by(job.saved.started_by());
  SetTimes(view, status);
  if (job.user().empty()) return status;
  status.set_user(job.user());
  status.set_priority(job.saved.spec().priority());
  status.set_submission(job.id());
  status.set_submitted_name(job.saved.submission().name());
  status.set_step_of(job.saved.submission().step_of());
  status.set_step(job.saved.submission().step());
  if (state::HasEnded(job.phase())) {
    *status.mutable_allocated() = job.saved.submission().last_nodes();
  } else if (job.phase() != v1::QUEUED) {
    for (std::string& node : state::AllocatedNodes(view.context.state.cluster, job)) {
      status.add_allocated(std::move(node));
    }
  }
  SetSubmitted(view, status);
  *status.mutable_avoided() = job.saved.submission().avoided();
  return status;
}

std::string Explain(const JobView& view, const std::string& cluster_waits, MonoTime at) {
  const state::Job& job = view.job;
  if (job.saved.has_verdict()) return EndText(job.saved.verdict());
  const std::string waiting_for = WaitingFor(view, cluster_waits, view.context.clock.FromHost(at));
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
                    " done", StandstillText(view, at));
  }
  return absl::StrCat(text, waits, SparesText(view));
}

}  // namespace cadre::job
