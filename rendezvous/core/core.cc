#include "rendezvous/core/core.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/cluster/eligibility.h"
#include "rendezvous/cluster/launcher_check.h"
#include "rendezvous/cluster/steps.h"
#include "rendezvous/core/join_checks.h"
#include "rendezvous/job/status.h"
#include "rendezvous/state/apply.h"
#include "rendezvous/state/owner.h"
#include "rendezvous/state/policy.h"
#include "rendezvous/state/records.h"
#include "rendezvous/state/state_limits.h"
#include "rpc/versions.h"

namespace cadre {
namespace {

constexpr size_t kMaxClosingStreams = 65536;

absl::StatusOr<const job::Job*> FindJob(absl::string_view name, const job::Jobs& jobs) {
  const job::Job* job = jobs.Find(std::string(name));
  if (job != nullptr) return job;
  return absl::NotFoundError(absl::StrCat("no job ", OneLine(name, state::kMaxJobNameBytes)));
}

}  // namespace

Core::Core(const CoreConfig& config)
    : context_(config, &state_),
      cluster_(&context_),
      jobs_(&context_,
            [this](const state::Job& job, MonoTime at) { return cluster_.WaitsFor(job, at); }) {}

Effects Core::Step(MonoTime at, const Event& event) {
  const bool has_leases = jobs_.HasLeases() || cluster_.HasLeases();
  const MonoTime due = NextDeadline();
  context_.now = std::max(context_.now, at);
  const absl::Duration pause = context_.clock.Advance(context_.now, due, has_leases);
  if (pause > absl::ZeroDuration()) {
    context_.out.Note("", absl::StrCat("the server stood still for ", ShortDuration(pause),
                                       "; every lease is extended by that"));
  }
  if (!std::exchange(stepped_, true)) Begin();
  Dispatch(event);
  ProcessPending();
  jobs_.EndLeases();
  ProcessPending();
  cluster_.RunTimers();
  jobs_.Advance();
  ProcessPending();
  // Nothing that jobs do in response gives back nodes, except that a job for which no node is left
  // ends and so frees its nodes.
  while (context_.clock.can_save() && cluster_.HasChanged()) {
    cluster_.Schedule();
    ProcessPending();
  }
  jobs_.Advance();
  ProcessPending();
  return Finish();
}

void Core::Begin() {
  context_.clock.BeginServing();
  cluster_.AwaitAgents();
  jobs_.Restore();
}

void Core::Dispatch(const Event& event) {
  if (const auto* said = std::get_if<cadre::NodeMessageReceived>(&event)) {
    OnNodeMessage(said->stream, said->message);
  } else if (const auto* closed = std::get_if<cadre::StreamClosed>(&event)) {
    OnStreamClosed(closed->stream);
  } else if (const auto* called = std::get_if<StoreCalled>(&event)) {
    calls_[called->call] = called->request.job();
    jobs_.OnStoreCall(called->call, called->request);
  } else if (const auto* dropped = std::get_if<StoreCallDropped>(&event)) {
    const auto call = calls_.find(dropped->call);
    if (call == calls_.end()) return;
    jobs_.OnStoreCallDropped(call->second, dropped->call);
    calls_.erase(call);
  } else if (const auto* cancelled = std::get_if<JobCancelled>(&event)) {
    jobs_.Cancel(cancelled->job, cancelled->reason, cancelled->signal, cancelled->cause,
                 cancelled->at_once);
  } else if (const auto* requeued = std::get_if<JobRequeued>(&event)) {
    jobs_.Requeue(requeued->job, requeued->reason, requeued->hold);
  } else if (const auto* signalled = std::get_if<JobSignalled>(&event)) {
    SignalJob(*signalled);
  } else if (const auto* updated = std::get_if<JobUpdated>(&event)) {
    jobs_.Update(updated->job, updated->update);
  } else if (const auto* submitted = std::get_if<JobSubmitted>(&event)) {
    jobs_.Submit(*submitted->spec, submitted->user, submitted->request_id, submitted->within,
                 submitted->array);
  } else if (const auto* drained = std::get_if<NodeDrained>(&event)) {
    cluster_.Drain(drained->node, drained->drained, drained->reason);
  } else if (const auto* save = std::get_if<cadre::CanSave>(&event)) {
    SetCanSave(save->can);
  }
}

void Core::OnNodeMessage(StreamId stream, const v1::NodeMessage& message) {
  // The message may have been in the host's queue when the host was told to close the stream.
  if (closing_.count(stream) != 0) return;
  const auto found = sessions_.find(stream);
  if (found == sessions_.end()) {
    if (message.has_agent() || cluster_.IsAgent(stream))
      return cluster_.OnAgentMessage(stream, message);
    if (message.has_join()) return OnJoin(stream, message);
    return context_.out.Close(
        stream, absl::InvalidArgumentError("the first message of a stream must be a Join"));
  }
  const Session session = found->second;
  const char* wrong =
      message.has_join() ? "a stream may carry only one Join"
      : message.has_agent()
          ? "messages of an agent may come only on a stream that begins with AgentJoined"
      : message.job() != session.job || message.incarnation() != session.incarnation
          ? "job or incarnation differs from those of the stream's Join"
          : nullptr;
  if (wrong == nullptr) return jobs_.OnNodeMessage(session.job, session.node, message);
  jobs_.OnStreamClosed(session.job, session.node);
  context_.out.Close(stream, absl::InvalidArgumentError(wrong));
}

void Core::OnJoin(StreamId stream, const v1::NodeMessage& message) {
  absl::Status may = jobs_.CheckJoin(message);
  const std::string job = state::IsJobName(message.job()) ? message.job() : "";
  if (may.ok()) may = cluster::CheckLauncher(state_, message);
  if (may.ok()) may = CheckCaller(state_, message);
  // This check comes last, because its error reveals something of the job.
  if (may.ok()) may = CheckVersion(message);
  if (!may.ok()) {
    return context_.out.Reject(stream, job, may.code(), std::string(may.message()));
  }
  CADRE_CHECK(sessions_.count(stream) == 0, "stream ", stream.value, " joined already");
  // Finish() removes the session again if the job rejects the node.
  sessions_[stream] = {job, message.join().node(), message.incarnation()};
  jobs_.Join(stream, message);
}

void Core::SignalJob(const JobSignalled& signalled) {
  const auto job = state_.jobs.find(signalled.job);
  if (job == state_.jobs.end()) return;
  const bool is_batch = job->second.saved.spec().has_batch();
  if (is_batch && signalled.target != v1::SignalJobRequest::SCRIPT) {
    SignalSteps(signalled.job, signalled.signal);
  }
  if (!is_batch || signalled.target != v1::SignalJobRequest::STEPS) {
    jobs_.Signal(signalled.job, signalled.signal);
  }
}

void Core::SignalSteps(const std::string& batch_job, int signal) {
  const uint64_t id = state_.jobs.at(batch_job).id();
  // The steps of a job have been submitted after it.
  for (auto next = state_.by_id.upper_bound(id); next != state_.by_id.end(); ++next) {
    if (state_.jobs.at(next->second).saved.submission().step_of() == id) {
      jobs_.Signal(next->second, signal);
    }
  }
}

void Core::OnStreamClosed(StreamId stream) {
  closing_.erase(stream);
  const auto found = sessions_.find(stream);
  if (found == sessions_.end()) return cluster_.StreamClosed(stream);
  const Session session = found->second;
  sessions_.erase(found);
  jobs_.OnStreamClosed(session.job, session.node);
}

void Core::SetCanSave(bool can) {
  if (!context_.clock.SetCanSave(can) || !can) return;
  cluster_.AwaitAbsent();
  jobs_.ExtendAbsentLeases();
}

void Core::ProcessPending() {
  // What jobs have to say may concern other jobs: steps end with their batch jobs.
  do {
    for (const cluster::JobEvent& news : cluster_.TakeJobEvents()) {
      if (const auto* granted = std::get_if<cluster::Granted>(&news)) {
        jobs_.OnNodeGranted(granted->job);
      } else if (const auto* ended = std::get_if<cluster::LauncherEnded>(&news)) {
        jobs_.OnLauncherEnded(ended->job, ended->node, ended->how);
      } else if (const auto* cannot = std::get_if<cluster::CannotBegin>(&news)) {
        jobs_.OnCannotBegin(cannot->job, cannot->why, cannot->try_later);
      } else if (const auto* over = std::get_if<cluster::StepIsOver>(&news)) {
        jobs_.Cancel(over->step, over->why, 0, v1::CANCELLED);
      } else if (const auto* never = std::get_if<cluster::NeverEligible>(&news)) {
        jobs_.Cancel(never->job, never->why, 0, v1::CANCELLED);
      }
    }
    const job::ClusterEvents news = jobs_.TakeClusterEvents();
    for (const std::string& job : news.changed) cluster_.JobChanged(job);
    for (const auto& [job, node] : news.launchers_lost) cluster_.LauncherLost(job, node);
    for (const std::string& job : news.gives_back) cluster_.GiveBack(job);
    for (const auto& [job, signal] : news.signals_steps) SignalSteps(job, signal);
  } while (cluster_.HasJobEvents());
}

Effects Core::Finish() {
  Effects effects = context_.out.Take();
  for (const ReplyToCall& reply : effects.reply) calls_.erase(reply.call);
  for (const CloseStream& close : effects.close) {
    sessions_.erase(close.stream);
    closing_.insert(close.stream);
    // Stream numbers grow, so the first one is the oldest.
    if (closing_.size() > kMaxClosingStreams) closing_.erase(closing_.begin());
  }
  return effects;
}

MonoTime Core::NextDeadline() const {
  // Replayed jobs get their timers in the first step.
  if (!stepped_ &&
      (state_.jobs.size() > state_.ended_jobs.size() || !state_.cluster.nodes.empty())) {
    return MonoTime();
  }
  const step::LeaseClock& clock = context_.clock;
  const MonoTime at =
      std::min(clock.LeaseToHost(std::min(jobs_.NextLease(), cluster_.NextLease())),
               std::min(clock.ToHost(jobs_.NextDeadline()),
                        clock.can_save() ? cluster_.NextEligible() : MonoTime::Never()));
  if (!jobs_.HasLeases() && !cluster_.HasLeases()) return at;
  return std::min(at, context_.now + clock.max_step_interval());
}

void Core::Apply(const v1::Record& record) {
  const std::string dropped = state::Apply(record, &state_);
  if (record.has_job_created()) {
    if (!record.job_created().ended_kept_as().empty()) {
      jobs_.Add(record.job_created().ended_kept_as());
    }
    jobs_.Add(record.job());
  }
  for (const saved::WholeJob& job : record.snapshot().jobs()) jobs_.Add(job.job().spec().name());
  if (!dropped.empty()) jobs_.Remove(dropped);
}

std::vector<v1::Record> Core::Snapshot() const { return state::SnapshotOf(state_); }

std::string Core::DebugString() const { return state::TextOf(state_); }

absl::StatusOr<std::string> Core::Explain(MonoTime now, absl::string_view name) const {
  ASSIGN_OR_RETURN(const job::Job* const job, FindJob(name, jobs_));
  return job::Explain(job->view(), cluster_.WaitsFor(job->view().job, now), now);
}

namespace {

absl::StatusOr<v1::JobStatus> StatusOf(absl::string_view name, const job::Jobs& jobs,
                                       const cluster::Cluster& cluster, const CoreConfig& config,
                                       MonoTime now, job::StatusDetail shown) {
  ASSIGN_OR_RETURN(const job::Job* const job, FindJob(name, jobs));
  const state::Job& state = job->view().job;
  v1::JobStatus status =
      job::StatusOf(std::string(name), job->view(), cluster.WaitsFor(state, now), now, shown);
  status.set_queue_reason(cluster.QueueReason(state));
  const cluster::StartRange begins = cluster.ExpectedStart(state, now);
  status.set_begins_from_unix_ms(config.ToUnixMs(begins.from));
  status.set_begins_until_unix_ms(config.ToUnixMs(begins.until));
  return status;
}

}  // namespace

absl::StatusOr<v1::JobStatus> Core::Status(MonoTime now, absl::string_view name) const {
  return StatusOf(name, jobs_, cluster_, context_.config, now, job::StatusDetail::kFull);
}

absl::StatusOr<v1::JobStatus> Core::StatusInList(MonoTime now, absl::string_view name) const {
  return StatusOf(name, jobs_, cluster_, context_.config, now, job::StatusDetail::kInList);
}

absl::StatusOr<v1::JobUsage> Core::Usage(absl::string_view name) const {
  ASSIGN_OR_RETURN(const job::Job* const job, FindJob(name, jobs_));
  v1::JobUsage usage = job->view().volatile_state.usage.All();
  usage.set_job(std::string(name));
  usage.set_owner(job->view().job.owner());
  return usage;
}

std::vector<v1::JobStatus> Core::AllStatuses(MonoTime now) const {
  std::vector<v1::JobStatus> statuses;
  for (const auto& [name, state] : state_.jobs) {
    statuses.push_back(*StatusInList(now, name));
  }
  return statuses;
}

absl::Status Core::MaySubmit(const v1::JobSpec& spec, absl::string_view user,
                             absl::string_view within, const v1::ArrayElements& array) const {
  RETURN_IF_ERROR(jobs_.MaySubmit(spec, user, array));
  RETURN_IF_ERROR(cluster::CheckDependencies(spec.queue(), state_));
  if (within.empty()) return absl::OkStatus();
  if (!array.indices().empty()) return absl::InvalidArgumentError("a step cannot be an array");
  return cluster::CheckStep(spec, user, within, state_);
}

namespace {

absl::Status CheckSubmittedAndLive(const state::Job& job) {
  if (job.user().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.name(), " was not submitted to the queue: 'cadre run' began it on its nodes"));
  }
  if (state::HasEnded(job.phase())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.name(), " has ended; submit it again"));
  }
  if (job.saved.submission().step_of() != 0) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.name(), " is a step of job ",
                                                      job.saved.submission().step_of(),
                                                      "; name that job"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Core::MayUpdate(absl::string_view name, const v1::JobUpdate& update,
                             bool is_administrator) const {
  ASSIGN_OR_RETURN(const job::Job* const found, FindJob(name, jobs_));
  const state::Job& job = found->view().job;
  RETURN_IF_ERROR(CheckSubmittedAndLive(job));
  if (job.phase() != v1::QUEUED &&
      (update.has_placement() || update.has_begin_unix_ms() || update.held())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.name(),
                     " has begun, and this can be changed only while it waits; put it back "
                     "into the queue with 'cadre requeue' first"));
  }
  RETURN_IF_ERROR(state::CheckPlacement(update.placement()));
  if (update.begin_unix_ms() < 0 || update.begin_unix_ms() > state::kMaxUnixMs ||
      update.limit().seconds() < 0 || update.limit().seconds() > kMaxDurationSeconds) {
    return absl::InvalidArgumentError(
        "a time to begin is between the years 1970 and 9999, and a limit at most 10 years");
  }
  if (is_administrator) return absl::OkStatus();
  if (update.has_priority() && update.priority() > job.saved.spec().priority()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "users may lower the priority of a job, which is ", job.saved.spec().priority(),
        ", and not raise it; that requires the server's own token"));
  }
  const absl::Duration limit = FromProto(update.limit());
  const bool longer = limit == absl::ZeroDuration() || limit > job.policy.total_timeout;
  if (update.has_limit() && job.phase() != v1::QUEUED && longer) {
    return absl::PermissionDeniedError(
        "users may shorten the time limit of a job that has begun, and not raise it; that requires "
        "the server's own token");
  }
  return absl::OkStatus();
}

absl::Status Core::MayRequeue(absl::string_view name) const {
  ASSIGN_OR_RETURN(const job::Job* const found, FindJob(name, jobs_));
  return CheckSubmittedAndLive(found->view().job);
}

absl::Status Core::MaySignal(absl::string_view name, int signal) const {
  ASSIGN_OR_RETURN(const job::Job* const found, FindJob(name, jobs_));
  if (!state::IsSignal(signal) || signal == SIGKILL) {
    return absl::InvalidArgumentError(absl::StrCat(
        "signal ", signal, " cannot be sent to a job; SIGKILL is a cancellation at once"));
  }
  if (found->view().job.phase() == v1::RUNNING) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job ", found->view().job.name(), " has no workers that run"));
}

const std::string* Core::SubmittedAs(const std::string& name, absl::string_view request_id) const {
  const auto ids = state_.by_submitted_name.find(name);
  if (ids == state_.by_submitted_name.end() || request_id.empty()) return nullptr;
  for (const uint64_t id : ids->second) {
    const state::Job& job = state_.jobs.at(state_.by_id.at(id));
    if (job.saved.submission().request_id() == request_id) return &job.name();
  }
  return nullptr;
}

const std::string* Core::LastSubmitted() const {
  auto job = state_.by_id.find(state_.counters.submitted());
  if (job == state_.by_id.end()) return nullptr;
  const uint64_t array = state_.jobs.at(job->second).saved.submission().array();
  if (array != 0) job = state_.by_id.find(array);
  return job == state_.by_id.end() ? nullptr : &job->second;
}

namespace {

// Returns the name of the element "12_7" of an array; null if there is none.
const std::string* ElementCalled(const std::string& text, const state::State& state) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('_', 1));
  uint64_t array = 0;
  uint32_t index = 0;
  if (!absl::SimpleAtoi(parts.first, &array) || !absl::SimpleAtoi(parts.second, &index)) {
    return nullptr;
  }
  for (auto next = state.by_id.lower_bound(array); next != state.by_id.end(); ++next) {
    const saved::Submission& submission = state.jobs.at(next->second).saved.submission();
    if (submission.array() != array) break;
    if (submission.array_index() == index) return &next->second;
  }
  return nullptr;
}

}  // namespace

std::string Core::NameOf(const std::string& text,
                         const std::function<bool(absl::string_view)>& prefers) const {
  if (const std::string* element = ElementCalled(text, state_); element != nullptr) {
    return *element;
  }
  const std::pair<std::string, std::string> id = absl::StrSplit(text, absl::MaxSplits('.', 1));
  uint64_t number = 0;
  if (absl::SimpleAtoi(id.first, &number)) {
    auto job = state_.by_id.find(number);
    if (job != state_.by_id.end() && id.second.empty()) return job->second;
    // The steps of a job have been submitted after it.
    for (uint32_t step = 0; absl::SimpleAtoi(id.second, &step) && job != state_.by_id.end();
         ++job) {
      const saved::Submission& submission = state_.jobs.at(job->second).saved.submission();
      if (submission.step_of() == number && submission.step() == step) return job->second;
    }
  }
  const auto ids = state_.by_submitted_name.find(text);
  if (ids == state_.by_submitted_name.end()) return text;
  const auto brought = state_.jobs.find(text);
  const bool is_brought = brought != state_.jobs.end() && brought->second.id() == 0;
  if (is_brought && prefers(brought->second.owner())) return text;
  const auto preferred = std::find_if(ids->second.rbegin(), ids->second.rend(), [&](uint64_t id) {
    return prefers(state_.jobs.at(state_.by_id.at(id)).owner());
  });
  return state_.by_id.at(preferred == ids->second.rend() ? *ids->second.rbegin() : *preferred);
}

const std::string* Core::OwnerOf(const std::string& job) const {
  const auto found = state_.jobs.find(job);
  return found == state_.jobs.end() ? nullptr : &found->second.owner();
}

std::vector<v1::ClusterNodeStatus> Core::ClusterNodes() const { return cluster_.Nodes(); }

absl::StatusOr<Core::LogSource> Core::FindLog(const v1::ReadLogRequest& request) const {
  return cluster_.FindLog(request);
}

absl::StatusOr<StackSources> Core::FindStacks(const v1::GetStacksRequest& request) const {
  return cadre::FindStacks(request, state_, jobs_);
}

absl::Status Core::CheckInvariants() const {
  // Replayed jobs get their connections in the first step.
  if (!stepped_) return absl::OkStatus();
  RETURN_IF_ERROR(jobs_.CheckInvariants());
  size_t open = 0;
  for (const auto& [name, state] : state_.jobs) {
    for (const auto& [node, connection] :
         jobs_.Find(name)->view().volatile_state.connections.all()) {
      if (!connection.stream.has_value()) continue;
      ++open;
      const auto session = sessions_.find(*connection.stream);
      if (session == sessions_.end() || session->second.node != node ||
          session->second.job != name) {
        return absl::InternalError(
            absl::StrCat("job ", name, ": node ", node, " and its stream disagree"));
      }
    }
  }
  if (open != sessions_.size()) return absl::InternalError("streams and connections disagree");
  if (closing_.size() > kMaxClosingStreams) return absl::InternalError("too many closing streams");
  if (state_.ended_jobs.size() > state::kMaxEndedJobs)
    return absl::InternalError("too many ended jobs");
  return cluster::CheckStepAllocations(state_);
}

}  // namespace cadre
