#include "rendezvous/core/core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/core/invariants.h"
#include "rendezvous/job/report.h"
#include "rendezvous/state/apply.h"
#include "rendezvous/state/snapshot.h"

namespace cadre {

Effects Core::Impl::Step(MonoTime at, const Event& event) {
  Effects effects;
  out = &effects;
  since_last = std::max(now, at) - now;
  now = std::max(now, at);
  if (can_save) clock = now;
  if (since_last > 2 * config.reconnect_grace) gap_ended_at = now;
  if (!stepped) {
    LinkRestoredNodes();
  } else if ((!node_timers.empty() || !agent_timers.empty()) && since_last > 2 * LookInterval()) {
    // The host slept, not the nodes: what they said meanwhile may still lie in its queue.
    ForgivePause(since_last);
  }
  stepped = true;
  Dispatch(event);
  RunTimers();
  FinishTouchedJobs();
  // What jobs do then gives nothing back by itself; but a job that no node is left for ends by it.
  while (can_save && std::exchange(cluster_changed, false)) ScheduleCluster();
  FinishTouchedJobs();
  out = nullptr;
  return effects;
}

void Core::Impl::Dispatch(const Event& event) {
  if (const auto* said = std::get_if<NodeSaid>(&event)) {
    OnNodeSaid(*said);
  } else if (const auto* closed = std::get_if<StreamClosed>(&event)) {
    OnStreamClosed(closed->stream);
  } else if (const auto* called = std::get_if<StoreCalled>(&event)) {
    OnStoreRequest(called->request.job(), keyspace::Asker{called->call.value, ""}, called->request);
  } else if (const auto* dropped = std::get_if<StoreCallDropped>(&event)) {
    OnCallDropped(dropped->call);
  } else if (const auto* cancelled = std::get_if<JobCancelled>(&event)) {
    CancelJob(cancelled->job, cancelled->reason, cancelled->signal, v1::CANCELLED);
  } else if (const auto* submitted = std::get_if<JobSubmitted>(&event)) {
    OnSubmitted(*submitted);
  } else if (const auto* drained = std::get_if<NodeDrained>(&event)) {
    OnDrained(*drained);
  } else if (const auto* save = std::get_if<CanSave>(&event)) {
    OnCanSave(save->can);
  }
}

void Core::Impl::ForgivePause(absl::Duration pause) {
  for (auto& [name, live] : lives) {
    live.orders_count_from = std::min(now, live.orders_count_from + pause);
    for (auto& [node, link] : live.links) {
      link.last_heard = std::min(now, link.last_heard + pause);
      link.gone_since = std::min(now, link.gone_since + pause);
    }
  }
  for (auto& [name, agent] : agents) agent.last_heard = std::min(now, agent.last_heard + pause);
  Note("", absl::StrCat("the server stood still for ", ShortDuration(pause),
                        "; every lease is extended by that"));
}

void Core::Impl::OnCanSave(bool can) {
  if (std::exchange(can_save, can) == can || !can) return;
  ForgiveSilence(now - std::exchange(clock, now));
}

void Core::Impl::ForgiveSilence(absl::Duration silence) {
  for (auto& [name, agent] : agents) {
    if (!agent.stream.has_value()) agent.last_heard = now;
  }
  for (auto& [name, live] : lives) {
    const JobState& job = *FindJob(name);
    if (HasEnded(job.phase)) continue;
    live.orders_count_from = std::min(now, live.orders_count_from + silence);
    live.patient_until = now + config.lease;
    if (live.hang.has_value()) {
      live.hang->deadline = std::min(now + kInquiryLimit, live.hang->deadline + silence);
    }
    for (auto& [node, link] : live.links) {
      if (link.stream.has_value()) continue;
      // Nobody was let in; they have a whole lease to come back.
      link.gone_since = now;
      link.gone_limit = std::max(config.lease, job.nodes.at(node).adopt_timeout);
      SetNodeTimer(name, node, &link, LostAt(link));
    }
    Touch(name, true);
  }
}

void Core::Impl::LinkRestoredNodes() {
  agents_awaited_until = now + config.lease;
  for (const auto& [name, node] : state.cluster.nodes) {
    agents[name].last_heard = now;
    SetAgentTimer(name, agents_awaited_until);
  }
  cluster_changed = !state.cluster.nodes.empty();
  for (const auto& [name, job] : state.jobs) {
    if (HasEnded(job.phase)) continue;
    lives[name].orders_count_from =
        job.phase == v1::STOPPING ? now : MonoTime::FromMicros(job.generation.formed_us);
    lives[name].patient_until = now + config.lease;
    lives[name].progress.BeginAt(now.micros() - job.created_us);
    for (const auto& [node, known] : job.nodes) {
      Link& link = lives[name].links[node];
      link.last_heard = link.gone_since = now;
      link.restored = true;
      // They have a whole lease to find the server again.
      link.gone_limit = std::max(config.lease, known.adopt_timeout);
      SetNodeTimer(name, node, &link, LostAt(link));
    }
    Touch(name, true);
  }
}

void Core::Impl::RunTimers() {
  while (!node_timers.empty() && std::get<0>(*node_timers.begin()) <= now) {
    const auto [at, job, node] = *node_timers.begin();
    node_timers.erase(node_timers.begin());
    OnNodeTimer(job, node);
  }
  while (!agent_timers.empty() && agent_timers.begin()->first <= now) {
    OnAgentTimer(std::string(agent_timers.begin()->second));
  }
  for (const auto& [at, job] : job_deadlines) {
    if (at > clock) break;
    touched.insert(job);
  }
}

void Core::Impl::FinishTouchedJobs() {
  while (!touched.empty()) {
    const std::string name = *touched.begin();
    JobState* job = FindJob(name);
    if (job != nullptr) {
      Live* live = &lives[name];
      DeliverAnswers(name, live->keyspace.Expire(clock));
      while (Advance(name, job, live)) {
      }
      PushStatus(name, *job, live);
      SetDeadline(name, live);
    }
    touched.erase(name);
  }
}

void Core::Impl::PushStatus(const std::string& name, const JobState& job, Live* live) {
  if (HasEnded(job.phase)) live->changed = live->progressed = false;
  // What cannot go out would only pile up.
  if (!can_save || PushAt(*live) > now) return;
  v1::ServerMessage message = NewMessage(name, job.generation.number);
  *message.mutable_status() =
      MakeStatus(name, job, live->progress, WaitingFor(job, *live, now), Shown::kToAgents);
  if (WantsCheckpoint(job, *live)) {
    message.mutable_status()->set_checkpoint_wanted(true);
    live->checkpoint_asked = job.generation.number;
  }
  for (const auto& [node, link] : live->links) {
    if (link.stream.has_value()) Send(*link.stream, message);
  }
  live->changed = live->progressed = false;
  live->last_push = now;
}

MonoTime Core::Impl::PushAt(const Live& live) const {
  const int64_t nodes = static_cast<int64_t>(live.links.size());
  const bool large = live.links.size() > kMaxNodesToldAtOnce;
  const absl::Duration least = std::max(kPushInterval, kPushIntervalPerNode * nodes);
  if (live.changed) return large ? live.last_push + least : now;
  if (!live.progressed) return MonoTime::Never();
  return live.last_push + (large ? std::max(kLargeProgressInterval, least) : kProgressInterval);
}

void Core::Impl::SetDeadline(const std::string& name, Live* live) {
  const JobState* job = FindJob(name);
  MonoTime at = std::min(PhaseDeadline(*job, *live), live->keyspace.NextDeadline());
  at = std::min(at, PushAt(*live));
  if (at == live->deadline) return;
  if (live->deadline != MonoTime::Never()) job_deadlines.erase({live->deadline, name});
  if (at != MonoTime::Never()) job_deadlines.insert({at, name});
  live->deadline = at;
}

MonoTime Core::Impl::NextDeadline() const {
  // Replayed jobs get their timers in the first step.
  if (!stepped && (state.jobs.size() > state.ended_jobs.size() || !state.cluster.nodes.empty())) {
    return MonoTime();
  }
  MonoTime at = MonoTime::Never();
  if (!node_timers.empty()) at = std::min(std::get<0>(*node_timers.begin()), now + LookInterval());
  if (!agent_timers.empty()) {
    at = std::min({at, agent_timers.begin()->first, now + LookInterval()});
  }
  if (can_save && !job_deadlines.empty()) at = std::min(at, job_deadlines.begin()->first);
  return at;
}

void Core::Impl::DropLive(const std::string& name) {
  const auto found = lives.find(name);
  if (found == lives.end()) return;
  Live& live = found->second;
  for (auto& [node, link] : live.links) {
    SetNodeTimer(name, node, &link, MonoTime::Never());
    if (!link.stream.has_value()) continue;
    sessions.erase(*link.stream);
    Close(*link.stream, absl::UnavailableError("the job is long over"));
  }
  if (live.deadline != MonoTime::Never()) job_deadlines.erase({live.deadline, name});
  lives.erase(found);
}

JobState* Core::Impl::FindJob(const std::string& name) {
  const auto found = state.jobs.find(name);
  return found == state.jobs.end() ? nullptr : &found->second;
}

v1::Record Core::Impl::NewRecord(const std::string& job) const {
  v1::Record record;
  record.set_job(job);
  return record;
}

std::string Core::Impl::NameOfNewRun() const {
  const absl::Time created =
      absl::FromUnixMillis(config.unix_ms_at_zero) + absl::Microseconds(now.micros());
  return absl::FormatTime("%Y%m%dT%H%M%E6SZ", created, absl::UTCTimeZone());
}

void Core::Impl::Commit(v1::Record record) {
  const std::string forgotten = ApplyRecord(record, &state);
  if (!forgotten.empty()) DropLive(forgotten);
  out->append.push_back(std::move(record));
}

v1::ServerMessage Core::Impl::NewMessage(const std::string& job, uint64_t generation) const {
  v1::ServerMessage message;
  message.set_job(job);
  SetGeneration(&message, {config.server_id, generation});
  return message;
}

GenerationId Core::Impl::NamedBy(const v1::NodeMessage& message) const {
  const GenerationId named = GenerationOf(message);
  return named.server_id != 0 ? named : GenerationId{config.server_id, named.number};
}

void Core::Impl::Send(StreamId stream, v1::ServerMessage message) {
  out->send.push_back({stream, std::move(message)});
}

void Core::Impl::SendToNode(const std::string& job, const std::string& node,
                            v1::ServerMessage message) {
  const auto live = lives.find(job);
  if (live == lives.end()) return;
  const auto link = live->second.links.find(node);
  if (link == live->second.links.end() || !link->second.stream.has_value()) return;
  Send(*link->second.stream, std::move(message));
}

void Core::Impl::Note(const std::string& job, std::string text) {
  out->notes.push_back({job, OneLine(text, kMaxMessageBytes)});
}

void Core::Impl::Touch(const std::string& job, bool changed) {
  touched.insert(job);
  if (changed) lives[job].changed = true;
}

Core::Core(const CoreConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Core::~Core() = default;

Effects Core::Step(MonoTime now, const Event& event) { return impl_->Step(now, event); }
MonoTime Core::NextDeadline() const { return impl_->NextDeadline(); }
void Core::Apply(const v1::Record& record) { ApplyRecord(record, &impl_->state); }
std::vector<v1::Record> Core::Snapshot() const { return SnapshotOf(impl_->state); }
std::string Core::DebugString() const { return DumpState(impl_->state); }

absl::StatusOr<std::string> Core::Explain(MonoTime now, absl::string_view name) const {
  const auto found = impl_->state.jobs.find(std::string(name));
  if (found == impl_->state.jobs.end()) {
    return absl::NotFoundError(absl::StrCat("no job ", OneLine(name, kMaxJobNameBytes)));
  }
  const JobState& job = found->second;
  if (job.verdict.has_value()) {
    return absl::StrCat("ended (", v1::JobPhase_Name(job.phase), "): ", job.verdict->message());
  }
  const auto live = impl_->lives.find(found->first);
  static const Live* const kNothing = new Live();
  const std::string waits =
      impl_->WaitingFor(job, live == impl_->lives.end() ? *kNothing : live->second, now);
  return ExplainText(job, waits);
}

absl::StatusOr<v1::JobStatus> Core::Status(MonoTime now, absl::string_view name) const {
  const auto found = impl_->state.jobs.find(std::string(name));
  if (found == impl_->state.jobs.end()) {
    return absl::NotFoundError(absl::StrCat("no job ", OneLine(name, kMaxJobNameBytes)));
  }
  return impl_->StatusOf(found->first, found->second, now, Shown::kWhole);
}

v1::JobStatus Core::Impl::StatusOf(const std::string& name, const JobState& job, MonoTime at,
                                   Shown shown) const {
  const auto known = lives.find(name);
  static const Live* const kNothing = new Live();
  const Live& live = known == lives.end() ? *kNothing : known->second;
  v1::JobStatus status = MakeStatus(name, job, live.progress, WaitingFor(job, live, at), shown);
  status.set_checkpoint_wanted(WantsCheckpoint(job, live));
  return status;
}

std::vector<v1::JobStatus> Core::AllStatuses(MonoTime now) const {
  std::vector<v1::JobStatus> statuses;
  for (const auto& [name, job] : impl_->state.jobs) {
    // A thousand whole ones would not fit into a message.
    statuses.push_back(impl_->StatusOf(name, job, now, Shown::kInList));
  }
  return statuses;
}

absl::Status Core::RefuseName(const std::string& name) const { return impl_->RefuseName(name); }

bool Core::WasSubmitted(const std::string& name, absl::string_view request_id) const {
  const auto found = impl_->state.jobs.find(name);
  return found != impl_->state.jobs.end() && !request_id.empty() &&
         found->second.request_id == request_id;
}
absl::Status Core::MaySubmit(const v1::JobSpec& spec, absl::string_view user) const {
  return impl_->MaySubmit(spec, user);
}
std::vector<v1::ClusterNodeStatus> Core::ClusterNodes() const { return impl_->ClusterNodes(); }
absl::StatusOr<Core::LogSource> Core::FindLog(const v1::ReadLogRequest& request) const {
  return impl_->FindLog(request);
}

absl::Status Core::CheckInvariants() const { return CheckCore(*impl_); }

}  // namespace cadre
