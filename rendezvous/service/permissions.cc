#include "rendezvous/service/permissions.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/state/owner.h"
#include "rpc/worker_end.h"

namespace cadre::service {
namespace {

std::string Hidden(const std::string& words) { return words.empty() ? "" : kNotShown; }

v1::WorkerExit Outline(const v1::WorkerExit& exit) {
  v1::WorkerExit shown;
  shown.set_exit_code(exit.exit_code());
  shown.set_signal(exit.signal());
  shown.set_core_dumped(exit.core_dumped());
  shown.set_exec_errno(exit.exec_errno());
  shown.set_out_of_memory(exit.out_of_memory());
  return shown;
}

v1::Failure Outline(const v1::Failure& failure) {
  v1::Failure shown;
  shown.set_cause(failure.cause());
  shown.set_rank(failure.rank());
  shown.set_local_rank(failure.local_rank());
  shown.set_node(failure.node());
  shown.set_generation(failure.generation());
  shown.set_unix_ms(failure.unix_ms());
  shown.set_collateral(failure.collateral());
  // Composed again from the fields that are shown, because the full text quotes the program's
  // output.
  std::string how = kNotShown;
  if (failure.has_exit()) {
    *shown.mutable_exit() = Outline(failure.exit());
    how = rpc::HowItEnded(shown.exit(), shown.cause());
  } else if (failure.cause() == v1::HANG) {
    how = "made no progress";
  } else if (failure.cause() == v1::NODE_LOST) {
    how = "is lost";
  } else if (failure.cause() == v1::PREEMPTED) {
    how = "was preempted";
  } else if (failure.cause() == v1::REQUEUED) {
    how = "was put back into the queue";
  }
  shown.set_message(absl::StrCat(
      failure.rank() >= 0 ? rpc::WorkerName(failure.rank(), failure.local_rank(), failure.node())
      : failure.node().empty() ? "the job"
                               : absl::StrCat("node ", failure.node()),
      " ", how));
  return shown;
}

v1::Verdict Outline(const v1::Verdict& verdict) {
  v1::Verdict shown;
  shown.set_job(verdict.job());
  shown.set_outcome(verdict.outcome());
  shown.set_exit_status(verdict.exit_status());
  shown.set_restarts(verdict.restarts());
  shown.set_generations(verdict.generations());
  shown.set_run(verdict.run());
  if (verdict.has_root_cause()) *shown.mutable_root_cause() = Outline(verdict.root_cause());
  for (const v1::Failure& failure : verdict.collateral()) {
    *shown.add_collateral() = Outline(failure);
  }
  for (const v1::Failure& failure : verdict.earlier()) *shown.add_earlier() = Outline(failure);
  shown.set_message(verdict.has_root_cause() && verdict.outcome() == v1::FAILED
                        ? shown.root_cause().message()
                        : Hidden(verdict.message()));
  return shown;
}

v1::GenerationTimeline Outline(const v1::GenerationTimeline& generation) {
  v1::GenerationTimeline shown;
  shown.set_generation(generation.generation());
  shown.set_nodes(generation.nodes());
  shown.set_world_size(generation.world_size());
  shown.set_gathering_us(generation.gathering_us());
  shown.set_formed_us(generation.formed_us());
  shown.set_running_us(generation.running_us());
  shown.set_failed_us(generation.failed_us());
  shown.set_stopping_us(generation.stopping_us());
  shown.set_stopped_us(generation.stopped_us());
  shown.set_first_progress_us(generation.first_progress_us());
  shown.set_rejoined(generation.rejoined());
  shown.set_warm(generation.warm());
  shown.set_end_reason(Hidden(generation.end_reason()));
  return shown;
}

v1::Recovery Outline(const v1::Recovery& recovery) {
  v1::Recovery shown;
  shown.set_from_generation(recovery.from_generation());
  shown.set_to_generation(recovery.to_generation());
  shown.set_reason(Hidden(recovery.reason()));
  shown.set_stop_us(recovery.stop_us());
  shown.set_gather_us(recovery.gather_us());
  shown.set_start_us(recovery.start_us());
  shown.set_first_progress_us(recovery.first_progress_us());
  shown.set_total_us(recovery.total_us());
  return shown;
}

v1::Timeline Outline(const v1::Timeline& timeline) {
  v1::Timeline shown;
  shown.set_job(timeline.job());
  for (const v1::GenerationTimeline& generation : timeline.generations()) {
    *shown.add_generations() = Outline(generation);
  }
  for (const v1::Recovery& recovery : timeline.recoveries()) {
    *shown.add_recoveries() = Outline(recovery);
  }
  for (const v1::ProgressSample& sample : timeline.progress()) {
    v1::ProgressSample* to = shown.add_progress();
    to->set_generation(sample.generation());
    to->set_at_us(sample.at_us());
    to->set_step(sample.step());
    to->set_samples_per_second(sample.samples_per_second());
  }
  return shown;
}

v1::NodeStatus Outline(const v1::NodeStatus& node) {
  v1::NodeStatus shown;
  shown.set_name(node.name());
  shown.set_host(node.host());
  shown.set_slots(node.slots());
  shown.set_node_rank(node.node_rank());
  shown.set_first_rank(node.first_rank());
  *shown.mutable_workers() = node.workers();
  // Process ids and names of kernel functions.
  shown.set_remains(node.remains());
  shown.set_warm(node.warm());
  return shown;
}

v1::JobProgress Outline(const v1::JobProgress& progress) {
  v1::JobProgress shown;
  shown.set_step(progress.step());
  shown.set_max_step(progress.max_step());
  shown.set_slowest_rank(progress.slowest_rank());
  shown.set_samples_per_second(progress.samples_per_second());
  shown.set_workers(progress.workers());
  shown.set_total(progress.total());
  shown.set_left_us(progress.left_us());
  return shown;
}

// The nodes that a job waits for are shown if the cluster chose them. For a job that was not
// submitted they may reveal how a node's spec differs.
bool ShowsWaiting(const v1::JobStatus& status) {
  return !status.user().empty() || status.phase() != v1::GATHERING;
}

v1::QueueOptions Outline(const v1::QueueOptions& queue) {
  v1::QueueOptions shown;
  shown.set_begin_unix_ms(queue.begin_unix_ms());
  shown.set_deadline_unix_ms(queue.deadline_unix_ms());
  shown.set_held(queue.held());
  *shown.mutable_dependencies() = queue.dependencies();
  shown.set_any_dependency(queue.any_dependency());
  shown.set_keep_if_never(queue.keep_if_never());
  return shown;
}

v1::JobStatus Outline(const v1::JobStatus& status) {
  v1::JobStatus shown;
  shown.set_name(status.name());
  shown.set_phase(status.phase());
  shown.set_generation(status.generation());
  for (const v1::NodeStatus& node : status.nodes()) *shown.add_nodes() = Outline(node);
  shown.set_world_size(status.world_size());
  shown.set_workers_running(status.workers_running());
  shown.set_workers_succeeded(status.workers_succeeded());
  shown.set_restarts(status.restarts());
  shown.set_max_restarts(status.max_restarts());
  shown.set_waiting_for(ShowsWaiting(status) ? status.waiting_for() : Hidden(status.waiting_for()));
  if (status.has_verdict()) *shown.mutable_verdict() = Outline(status.verdict());
  if (status.has_timeline()) *shown.mutable_timeline() = Outline(status.timeline());
  shown.set_nodes_in(status.nodes_in());
  if (status.has_progress()) *shown.mutable_progress() = Outline(status.progress());
  shown.set_stop_reason(Hidden(status.stop_reason()));
  shown.set_ended_generation(status.ended_generation());
  shown.set_end_reason(Hidden(status.end_reason()));
  shown.set_checkpoint_wanted(status.checkpoint_wanted());
  shown.set_user(status.user());
  shown.set_priority(status.priority());
  shown.set_submission(status.submission());
  for (const v1::AvoidedNode& avoided : status.avoided()) {
    v1::AvoidedNode* to = shown.add_avoided();
    to->set_node(avoided.node());
    to->set_unfit(avoided.unfit());
    to->set_reason(Hidden(avoided.reason()));
  }
  shown.set_run(status.run());
  shown.set_started_by(status.started_by());
  shown.set_submitted_name(status.submitted_name());
  shown.set_submitted_unix_ms(status.submitted_unix_ms());
  shown.set_began_unix_ms(status.began_unix_ms());
  shown.set_ended_unix_ms(status.ended_unix_ms());
  shown.set_limit_us(status.limit_us());
  shown.set_step_of(status.step_of());
  shown.set_step(status.step());
  *shown.mutable_allocated() = status.allocated();
  shown.set_min_nodes(status.min_nodes());
  shown.set_max_nodes(status.max_nodes());
  shown.set_cpus(status.cpus());
  shown.set_gpus(status.gpus());
  shown.set_memory(status.memory());
  shown.set_workers(status.workers());
  shown.set_held(status.held());
  if (status.has_queue()) *shown.mutable_queue() = Outline(status.queue());
  shown.set_array(status.array());
  shown.set_array_index(status.array_index());
  shown.set_array_at_once(status.array_at_once());
  shown.set_array_size(status.array_size());
  shown.set_begins_from_unix_ms(status.begins_from_unix_ms());
  shown.set_begins_until_unix_ms(status.begins_until_unix_ms());
  shown.set_queue_reason(status.queue_reason());
  shown.set_batch_name(status.batch_name());
  *shown.mutable_placement()->mutable_nodes() = status.placement().nodes();
  *shown.mutable_placement()->mutable_exclude() = status.placement().exclude();
  *shown.mutable_placement()->mutable_labels() = status.placement().labels();
  shown.set_no_requeue(status.no_requeue());
  return shown;
}

v1::AccountedJob Outline(const v1::AccountedJob& job) {
  v1::AccountedJob shown;
  shown.set_server_id(job.server_id());
  shown.set_ended_order(job.ended_order());
  shown.set_id(job.id());
  shown.set_name(job.name());
  shown.set_user(job.user());
  shown.set_step_of(job.step_of());
  shown.set_step(job.step());
  shown.set_array(job.array());
  shown.set_array_index(job.array_index());
  shown.set_array_size(job.array_size());
  shown.set_phase(job.phase());
  shown.set_exit_status(job.exit_status());
  shown.set_cause(job.cause());
  shown.set_signal(job.signal());
  shown.set_message(Hidden(job.message()));
  shown.set_submitted_unix_ms(job.submitted_unix_ms());
  shown.set_began_unix_ms(job.began_unix_ms());
  shown.set_ended_unix_ms(job.ended_unix_ms());
  shown.set_limit_us(job.limit_us());
  shown.set_nodes(job.nodes());
  shown.set_node_count(job.node_count());
  shown.set_workers(job.workers());
  shown.set_cpus(job.cpus());
  shown.set_gpus(job.gpus());
  shown.set_memory(job.memory());
  shown.set_restarts(job.restarts());
  shown.set_generations(job.generations());
  shown.set_priority(job.priority());
  shown.set_batch(job.batch());
  shown.set_held_us(job.held_us());
  shown.set_cpu_us(job.cpu_us());
  shown.set_gpu_us(job.gpu_us());
  *shown.mutable_node_uses() = job.node_uses();
  *shown.mutable_lost() = job.lost();
  shown.set_holds_nodes(job.holds_nodes());
  return shown;
}

// Copies the loss and the figures: numbers, and names of letters and digits (rpc/job_progress.h).
void ShowFigures(const v1::JobStatus& status, v1::JobStatus* shown) {
  if (status.has_progress()) {
    shown->mutable_progress()->set_loss(status.progress().loss());
    *shown->mutable_progress()->mutable_figures() = status.progress().figures();
  }
  if (!status.has_timeline()) return;
  *shown->mutable_timeline()->mutable_figure_names() = status.timeline().figure_names();
  for (int i = 0; i < status.timeline().progress_size(); ++i) {
    const v1::ProgressSample& sample = status.timeline().progress(i);
    v1::ProgressSample* to = shown->mutable_timeline()->mutable_progress(i);
    to->set_loss(sample.loss());
    *to->mutable_figures() = sample.figures();
  }
}

// For callers that may see nothing, if an answer reaches them at all.
template <typename Answer>
bool ClearIfHidden(const Bearer& bearer, Answer* answer) {
  if (MayView(bearer).ok()) return false;
  *answer = Answer();
  return true;
}

// The same for answers that only a job's owner gets; a reader owns no job.
template <typename Answer>
void ShowToOwners(const Bearer& bearer, Answer* answer) {
  if (bearer.kind == Bearer::Kind::kReader) *answer = Answer();
  ClearIfHidden(bearer, answer);
}

}  // namespace

void ShowTo(const Bearer& bearer, v1::JobStatus* status) {
  if (ClearIfHidden(bearer, status) || MayUseJob(bearer, OwnerOf(*status)).ok()) return;
  v1::JobStatus shown = Outline(*status);
  // Read-only tokens are for dashboards, which plot these figures.
  if (bearer.kind == Bearer::Kind::kReader) ShowFigures(*status, &shown);
  *status = std::move(shown);
}

void ShowTo(const Bearer& bearer, std::vector<v1::JobStatus>* jobs) {
  if (ClearIfHidden(bearer, jobs)) return;
  for (v1::JobStatus& job : *jobs) ShowTo(bearer, &job);
}

void ShowTo(const Bearer& bearer, v1::ListJobsReply* jobs) {
  if (ClearIfHidden(bearer, jobs)) return;
  for (v1::JobStatus& job : *jobs->mutable_jobs()) ShowTo(bearer, &job);
}

void ShowTo(const Bearer& bearer, v1::JobUsage* usage) {
  if (ClearIfHidden(bearer, usage) || bearer.kind == Bearer::Kind::kReader) return;
  if (!MayUseJob(bearer, usage->owner()).ok()) *usage = v1::JobUsage();
}

void ShowTo(const Bearer& bearer, std::vector<v1::ClusterNodeStatus>* nodes) {
  ClearIfHidden(bearer, nodes);
}

void ShowTo(const Bearer& bearer, v1::ListNodesReply* nodes) { ClearIfHidden(bearer, nodes); }

void ShowTo(const Bearer& bearer, v1::HistoryReply* history) {
  if (ClearIfHidden(bearer, history)) return;
  for (v1::AccountedJob& job : *history->mutable_jobs()) {
    if (!MayUseJob(bearer, job.user()).ok()) job = Outline(job);
  }
}

void ShowTo(const Bearer& bearer, v1::UsageReply* usage) { ClearIfHidden(bearer, usage); }

void ShowTo(const Bearer& bearer, v1::ReadLogReply* log) { ShowToOwners(bearer, log); }

void ShowTo(const Bearer& bearer, v1::GetStacksReply* stacks) { ShowToOwners(bearer, stacks); }

void ShowTo(const Bearer& bearer, v1::StoreReply* reply) {
  if (!MayCallStore(bearer).ok()) *reply = v1::StoreReply();
}

bool MayReceive(const Bearer& bearer, const StreamPurpose& stream,
                const v1::ServerMessage& message) {
  if (message.has_rejected()) return true;
  if (stream.agent) {
    return bearer.kind == Bearer::Kind::kAdministrator && message.job().empty();
  }
  return !message.has_agent() && message.job() == stream.job;
}

namespace {

constexpr char kAdministrator[] = "; that requires the server's own token";

bool IsAdministrator(const Bearer& bearer) { return bearer.kind == Bearer::Kind::kAdministrator; }

std::string TokenText(const Bearer& bearer) {
  switch (bearer.kind) {
    case Bearer::Kind::kAdministrator:
      return "this is the server's own token";
    case Bearer::Kind::kUser:
      return absl::StrCat("this is the token of user ", bearer.user);
    case Bearer::Kind::kPart:
      return absl::StrCat("this is the token of a launcher of job ", bearer.job);
    case Bearer::Kind::kReader:
      break;
  }
  return "this is a read-only token";
}

absl::Status Denied(const Bearer& bearer, absl::string_view what) {
  return absl::PermissionDeniedError(absl::StrCat(TokenText(bearer), ", which ", what));
}

}  // namespace

absl::Status MayOpenStream(const Bearer& bearer, const v1::NodeMessage& first) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  if (first.has_agent()) {
    return Denied(bearer, absl::StrCat("may not add a node to the cluster", kAdministrator));
  }
  if (bearer.kind == Bearer::Kind::kReader) return Denied(bearer, "may not start jobs");
  const uint64_t part = first.join().part();
  if (bearer.kind == Bearer::Kind::kUser) {
    return part == 0 ? absl::OkStatus() : Denied(bearer, "may not start a part of a submitted job");
  }
  if (first.job() == bearer.job && part == bearer.part) return absl::OkStatus();
  return Denied(bearer, absl::StrCat("is valid for its part ", bearer.part, " only; this one is ",
                                     first.job() == bearer.job ? absl::StrCat("part ", part)
                                                               : "of another job"));
}

absl::Status MayCallStore(const Bearer& bearer) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  return Denied(bearer, absl::StrCat("may not use a job's store", kAdministrator));
}

absl::Status MayView(const Bearer& bearer) {
  if (bearer.kind != Bearer::Kind::kPart) return absl::OkStatus();
  return Denied(bearer, "is valid for its node's stream only; use your own token");
}

absl::Status MaySubmit(const Bearer& bearer, const v1::SubmitJobRequest& request) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  const absl::Status may_view = MayView(bearer);
  if (bearer.kind == Bearer::Kind::kReader) {
    return Denied(bearer, "may not submit jobs; that requires a user's token");
  }
  if (!may_view.ok() || request.user() == bearer.user) return may_view;
  return Denied(bearer, "may submit jobs of that user only; you are another user");
}

absl::Status MayUseJob(const Bearer& bearer, absl::string_view owner) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  const absl::Status may_view = MayView(bearer);
  if (bearer.kind == Bearer::Kind::kReader) {
    return Denied(bearer,
                  "may not change jobs or see their output; that requires the owner's token, or "
                  "the server's own");
  }
  if (!may_view.ok() || (!owner.empty() && owner == bearer.user)) return may_view;
  return absl::PermissionDeniedError(
      absl::StrCat("the job is ", state::OwnerText(owner), ", and ", TokenText(bearer), "; give ",
                   owner.empty() ? "" : "that user's token, or ", "the server's own"));
}

absl::Status MayDrain(const Bearer& bearer) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  return Denied(bearer, absl::StrCat("may not drain a node", kAdministrator));
}

const std::string& OwnerOf(const v1::JobStatus& status) {
  return state::OwnerFrom(status.user(), status.started_by());
}

}  // namespace cadre::service
