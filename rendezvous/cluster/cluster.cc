#include "rendezvous/cluster/cluster.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/cluster/agent_check.h"
#include "rendezvous/cluster/node_shapes.h"
#include "rendezvous/cluster/parts.h"
#include "rendezvous/cluster/suitability.h"
#include "rendezvous/state/policy.h"
#include "rpc/versions.h"

namespace cadre::cluster {
namespace {

constexpr size_t kMaxEndTextBytes = 512;

}  // namespace

void Cluster::AwaitAgents() {
  for (const auto& [name, node] : context_.state.cluster.nodes) {
    agents_.Expect(name, context_.clock.lease_now());
  }
  for (const auto& [name, job] : context_.state.jobs) queue_.Add(job);
  changed_ = !context_.state.cluster.nodes.empty();
}

void Cluster::AgentSaid(StreamId stream, const v1::NodeMessage& message) {
  const v1::AgentReport& report = message.agent();
  const std::string* known = agents_.NodeOf(stream);
  if (known == nullptr) {
    if (!report.has_joined()) {
      return out_.Close(stream,
                        absl::InvalidArgumentError(
                            "what an agent says comes on a stream that begins with AgentJoined"));
    }
    const absl::Status may = MayJoin(message);
    if (!may.ok()) return out_.Reject(stream, "", may.code(), std::string(may.message()));
    return AgentJoined(stream, message);
  }
  const std::string node = *known;
  agents_.Heard(node, context_.clock.lease_now());
  if (report.has_ended()) return PartEnded(node, report.ended());
  if (report.has_remains()) return PartRemains(node, report.remains());
  if (report.leaving()) return AgentLeaving(node);
}

absl::Status Cluster::MayJoin(const v1::NodeMessage& message) const {
  const v1::AgentJoined& joined = message.agent().joined();
  RETURN_IF_ERROR(CheckAgent(joined));
  if (!context_.config.only_job.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this endpoint is served by a launcher of job ", context_.config.only_job,
                     " and ends with it; start 'cadre server'"));
  }
  const Agent* known = agents_.Find(joined.node());
  if (known != nullptr && known->stream.has_value() &&
      known->incarnation != message.incarnation()) {
    return absl::AlreadyExistsError(
        absl::StrCat("node ", joined.node(), " has an agent already; give --node-name"));
  }
  return CheckNewNode(joined.node(), context_.state.cluster);
}

void Cluster::AgentJoined(StreamId stream, const v1::NodeMessage& message) {
  const v1::AgentJoined& joined = message.agent().joined();
  const std::string& node = joined.node();
  if (const Agent* before = agents_.Find(node); before != nullptr && before->stream.has_value()) {
    out_.Close(*before->stream,
               absl::AbortedError("a newer stream of the same agent took this one's place"));
  }
  Remember(joined);
  const std::set<uint64_t> runs(joined.parts().begin(), joined.parts().end());
  agents_.Connect(node, stream, message.incarnation(), runs, context_.clock.lease_now());
  agents_.SetVersion(node, rpc::VersionIn(joined));
  v1::ServerMessage welcome = step::MessageFor("", 0);
  welcome.mutable_welcome()->set_server_id(context_.config.server_id);
  *welcome.mutable_welcome()->mutable_lease() = ToProto(context_.config.lease);
  *welcome.mutable_welcome()->mutable_version() = rpc::ThisVersion();
  out_.Send(stream, std::move(welcome));
  CompareParts(node, runs);
  changed_ = true;
}

void Cluster::Remember(const v1::AgentJoined& joined) {
  const auto& nodes = context_.state.cluster.nodes;
  const auto found = nodes.find(joined.node());
  if (found != nodes.end() && SameNode(found->second, joined)) return;
  v1::Record record;
  saved::ClusterNode* known = record.mutable_cluster_node_set()->mutable_node();
  if (found != nodes.end()) *known = found->second;
  known->set_name(joined.node());
  known->set_user(joined.user());
  known->set_cpus(joined.cpus());
  known->set_gpus(joined.gpus());
  *known->mutable_labels() = joined.labels();
  out_.Commit(std::move(record));
  out_.Note("", absl::StrCat("node ", joined.node(), " of the cluster: ",
                             Count(joined.cpus(), "CPU"), ", ", Count(joined.gpus(), "GPU")));
}

void Cluster::CompareParts(const std::string& node, const std::set<uint64_t>& runs) {
  const std::map<uint64_t, saved::PlacedPart>& parts = context_.state.cluster.parts;
  const std::vector<saved::PlacedPart> here = PartsOn(context_.state, node);
  for (const uint64_t id : runs) {
    const auto part = parts.find(id);
    if (part != parts.end() && part->second.part().node() == node) continue;
    agents_.AddLeftover(node, id);
    v1::Part unknown;
    unknown.set_id(id);
    unknown.set_node(node);
    SendStop(unknown);
  }
  for (const saved::PlacedPart& part : here) {
    const bool is_run = runs.count(part.part().id()) != 0;
    if (!part.taken_back()) {
      if (!is_run) SendStart(part);
    } else if (is_run) {
      SendStop(part.part());
    } else {
      v1::PartReport gone;
      gone.set_id(part.part().id());
      PartEnded(node, gone);
    }
  }
}

void Cluster::PartEnded(const std::string& node, const v1::PartReport& report) {
  changed_ = true;
  agents_.PartEnded(node, report.id());
  const std::map<uint64_t, saved::PlacedPart>& parts = context_.state.cluster.parts;
  const auto found = parts.find(report.id());
  if (found == parts.end() || found->second.part().node() != node) return;
  const saved::PlacedPart part = found->second;
  const bool unasked = !part.taken_back() && !IsOver(FindJob(context_.state, part.part().job()));
  if (unasked) {
    return PartEndedUnasked(part, OneLine(report.text(), kMaxEndTextBytes), report.blame());
  }
  EndPart(part, nullptr);
}

void Cluster::PartRemains(const std::string& node, const v1::PartRemains& remains) {
  const auto found = context_.state.cluster.parts.find(remains.id());
  const bool its =
      found != context_.state.cluster.parts.end() && found->second.part().node() == node;
  if (!its && agents_.Find(node)->leftovers.count(remains.id()) == 0) return;
  const std::string text = OneLine(remains.text(), kMaxEndTextBytes);
  agents_.AddRemains(node, remains.id(), text);
  changed_ = true;
  if (!its || found->second.taken_back()) return;
  const std::string how = absl::StrCat("its launcher ended, and a process that it left ", text);
  for_jobs_.push_back(LauncherEnded{found->second.part().job(), node, how});
  TakeBack(remains.id());
}

void Cluster::StreamClosed(StreamId stream) {
  if (!IsAgent(stream)) return;
  agents_.Disconnect(stream, context_.clock.lease_now());
  changed_ = true;
}

void Cluster::AgentLeaving(const std::string& node) {
  EndPartsOf(node);
  out_.Close(*agents_.Find(node)->stream, absl::OkStatus());
  agents_.Erase(node);
  out_.Note("", absl::StrCat("node ", node, " has left the cluster"));
  // What a person said of it is kept.
  if (context_.state.cluster.nodes.at(node).drained()) return;
  v1::Record record;
  record.mutable_cluster_node_gone()->set_node(node);
  out_.Commit(std::move(record));
}

void Cluster::RunTimers() {
  if (rests_.EndDue(context_.clock.lease_now())) {
    changed_ = true;
    queue_.JudgeRestingAnew();
  }
  while (const std::optional<std::string> node = agents_.NextLost(context_.clock)) {
    const Agent& agent = *agents_.Find(*node);
    if (agent.stream.has_value()) {
      out_.Close(*agent.stream,
                 absl::DeadlineExceededError(absl::StrCat("nothing was heard of this agent for ",
                                                          ShortDuration(context_.config.lease))));
    }
    agents_.Erase(*node);
    out_.Note(
        "", absl::StrCat("the agent of node ", *node, " is lost; its parts of jobs count no more"));
    EndPartsOf(*node);
  }
}

void Cluster::EndPartsOf(const std::string& node) {
  for (const saved::PlacedPart& part : PartsOn(context_.state, node)) EndPart(part, nullptr);
  changed_ = true;
}

void Cluster::EndPart(const saved::PlacedPart& part, const v1::AvoidedNode* avoid) {
  v1::Record record;
  v1::PartEnded* ended = record.mutable_part_ended();
  ended->set_id(part.part().id());
  if (avoid != nullptr) *ended->mutable_avoid() = *avoid;
  const state::Job* job = FindJob(context_.state, part.part().job());
  ended->set_back_to_queue(job != nullptr && IsUnstarted(*job) &&
                           IsLastPart(context_.state, part.part()));
  const bool back = ended->back_to_queue();
  out_.Commit(std::move(record));
  if (back) queue_.Add(*job);
}

void Cluster::Drain(const std::string& node, bool drained, const std::string& reason) {
  const auto found = context_.state.cluster.nodes.find(node);
  if (found == context_.state.cluster.nodes.end()) return;
  const std::string why = OneLine(reason, state::kMaxNodeTextBytes);
  v1::Record record;
  saved::ClusterNode* changed = record.mutable_cluster_node_set()->mutable_node();
  *changed = found->second;
  // Asked a second time without a reason, it stays drained for the first one.
  if (!drained || !why.empty() || !changed->drained()) {
    changed->set_drain_reason(drained ? why : "");
  }
  changed->set_drained(drained);
  out_.Commit(std::move(record));
  out_.Note("", absl::StrCat("node ", node, drained ? " is drained" : " takes work again",
                             why.empty() ? "" : ": ", why));
  changed_ = true;
}

void Cluster::LauncherLost(const std::string& job, const std::string& node) {
  changed_ = true;
  TakeBackFrom(job, node);
}

void Cluster::GiveBack(const std::string& job) {
  std::vector<uint64_t> ids;
  for (const auto& [id, part] : context_.state.cluster.parts) {
    if (part.part().job() == job && !part.taken_back()) ids.push_back(id);
  }
  if (ids.empty()) return;
  changed_ = true;
  out_.Note(job, "gives back its nodes: others that it needs are not there");
  for (const uint64_t id : ids) TakeBack(id);
}

void Cluster::TakeBackFrom(const std::string& job, const std::string& node) {
  for (const auto& [id, part] : context_.state.cluster.parts) {
    if (part.taken_back() || part.part().job() != job || part.part().node() != node) continue;
    return TakeBack(id);
  }
}

void Cluster::TakeBack(uint64_t id) {
  v1::Record record;
  record.mutable_part_taken_back()->set_id(id);
  out_.Commit(std::move(record));
  SendStop(context_.state.cluster.parts.at(id).part());
}

void Cluster::Schedule() {
  changed_ = false;
  TakeBackFromEnded();
  // A server that began anew does not yet know what there is.
  if (agents_.AnyExpected()) return;
  LookAtNodes();
  const Resting resting = rests_.ByJob();
  std::vector<ScheduleJob> jobs =
      BegunJobs(context_.state, queue_.begun(), HeldShares(context_.state, agents_), resting,
                context_.config.stop_margin);
  for (ScheduleJob& job : NextInQueue(resting)) jobs.push_back(std::move(job));
  cluster::Schedule schedule = PlaceJobs(nodes_, jobs, context_.now);
  for (const std::string& name : schedule.impossible) {
    const state::Job* job = FindJob(context_.state, name);
    if (job == nullptr || job->phase() != v1::QUEUED) continue;
    queue_.SetAside(name, schedule.waiting.at(name).reason,
                    resting.count(job->saved.submission().order()) != 0);
    // There is room among those that are looked at.
    changed_ = true;
  }
  CarryOut(schedule);
  for (const auto& [name, why] : schedule.hopeless) {
    const state::Job* job = FindJob(context_.state, name);
    // One that has begun waits for a node as long as for any that is lost.
    if (IsOver(job) || job->saved.generations() > 0) continue;
    // What happened comes before what follows from it: a table shows the beginning alone.
    for_jobs_.push_back(CannotBegin{
        name, absl::StrCat("no node is left for it; tried: ", NodesTried(*job), "; it needs ", why),
        true});
  }
  TakeBackFromUnstarted(schedule);
  waiting_ = std::move(schedule.waiting);
}

void Cluster::LookAtNodes() {
  std::vector<ScheduleNode> nodes = NodesToSchedule(context_.state, agents_);
  std::vector<HeldShare> remains;
  if (!agents_.remains().empty()) {
    for (const auto& [job, shares] : HeldShares(context_.state, agents_)) {
      std::copy_if(shares.begin(), shares.end(), std::back_inserter(remains),
                   [](const HeldShare& held) { return held.remains; });
    }
  }
  if (nodes != nodes_ || remains != remains_) queue_.JudgeAllAnew();
  nodes_ = std::move(nodes);
  remains_ = std::move(remains);
}

std::vector<ScheduleJob> Cluster::NextInQueue(const Resting& resting) {
  const NodeShapes shapes(nodes_, remains_);
  std::vector<ScheduleJob> jobs;
  std::vector<std::string> impossible;
  last_looked_at_.reset();
  for (const JobQueue::Key& key : queue_.waiting()) {
    if (jobs.size() == kQueueDepth) break;
    const std::string& name = std::get<std::string>(key);
    ScheduleJob job =
        JobToSchedule(*FindJob(context_.state, name), resting, context_.config.stop_margin);
    if (NodeShapes::TreatsAllAlike(job) && !shapes.CanRun(job)) {
      impossible.push_back(name);
    } else {
      jobs.push_back(std::move(job));
      if (jobs.size() == kQueueDepth) last_looked_at_ = key;
    }
  }
  for (const std::string& name : impossible) queue_.SetAside(name, "", false);
  return jobs;
}

void Cluster::JobChanged(const std::string& name) {
  const state::Job* job = FindJob(context_.state, name);
  if (IsOver(job)) {
    queue_.Remove(name);
    changed_ = true;
    return;
  }
  queue_.Add(*job);
  // Behind as many as a pass looks at nothing is decided of it.
  const JobQueue::Key* key = queue_.KeyOf(name);
  if (key == nullptr || !last_looked_at_.has_value() || *key < *last_looked_at_) changed_ = true;
}

void Cluster::TakeBackFromEnded() {
  std::vector<uint64_t> over;
  for (const auto& [id, part] : context_.state.cluster.parts) {
    if (!part.taken_back() && IsOver(FindJob(context_.state, part.part().job())))
      over.push_back(id);
  }
  for (const uint64_t id : over) TakeBack(id);
}

void Cluster::TakeBackFromUnstarted(const cluster::Schedule& schedule) {
  std::vector<uint64_t> ids;
  for (const auto& [id, part] : context_.state.cluster.parts) {
    const std::string& name = part.part().job();
    // A hopeless one ends.
    if (part.taken_back() || schedule.waiting.count(name) == 0 ||
        schedule.hopeless.count(name) != 0) {
      continue;
    }
    const state::Job* job = FindJob(context_.state, name);
    if (job == nullptr || !IsUnstarted(*job)) continue;
    ids.push_back(id);
    out_.Note(name, absl::StrCat("gives back node ", part.part().node(),
                                 ": others that it needs are not there"));
  }
  for (const uint64_t id : ids) TakeBack(id);
}

void Cluster::CarryOut(const cluster::Schedule& schedule) {
  for (const Withdrawn& withdrawn : schedule.withdraw) {
    out_.Note(withdrawn.job,
              absl::StrCat("gives up node ", withdrawn.node, ": ", withdrawn.reason));
    TakeBackFrom(withdrawn.job, withdrawn.node);
  }
  std::vector<uint64_t> placed;
  for (const Placed& one : schedule.place) {
    v1::Record record;
    v1::Part* part = record.mutable_part_placed()->mutable_part();
    part->set_id(context_.state.counters.last_part() + 1);
    part->set_job(one.job);
    part->set_node(one.node);
    part->set_workers(one.share.workers);
    part->set_cpus(one.share.cpus);
    part->set_gpus(one.share.gpus);
    record.mutable_part_placed()->set_at_us(context_.now.micros());
    const state::Job* job = FindJob(context_.state, one.job);
    record.mutable_part_placed()->set_leaves_queue(job != nullptr && job->phase() == v1::QUEUED);
    placed.push_back(part->id());
    const bool leaves_queue = record.part_placed().leaves_queue();
    out_.Commit(std::move(record));
    if (leaves_queue) queue_.Add(*job);
    out_.Note(one.job, absl::StrCat("gets node ", one.node, ": ", one.reason));
    for_jobs_.push_back(Granted{one.job});
  }
  // Each of them is told of all.
  for (const uint64_t id : placed) SendStart(context_.state.cluster.parts.at(id));
}

std::string Cluster::WaitsFor(const state::Job& job, MonoTime at) const {
  if (job.user().empty() || (job.phase() != v1::QUEUED && job.phase() != v1::GATHERING)) return "";
  const bool queued = job.phase() == v1::QUEUED;
  const std::string launchers = queued ? "" : LaunchersAwaited(context_.state, job);
  MonoTime until = MonoTime::Never();
  const std::string reason = WhyNotPlaced(job, &until);
  if (reason.empty()) {
    return queued ? "the agents of the cluster's nodes to come back" : launchers;
  }
  const bool known = queued && until != MonoTime::Never();
  const std::string remains = WhatRemains(context_.state, agents_);
  return absl::StrCat(
      launchers, launchers.empty() ? "" : ", and for ", reason,
      known ? absl::StrCat("; within ", ShortDuration(until - at), " at the latest") : "",
      remains.empty() ? "" : "; ", remains);
}

// Empty: no pass has looked at it.
std::string Cluster::WhyNotPlaced(const state::Job& job, MonoTime* until) const {
  if (std::string* why = queue_.WhyAside(job.name()); why != nullptr) {
    if (why->empty()) {
      const ScheduleJob impossible = JobToSchedule(job, {}, context_.config.stop_margin);
      *why = MissingText(impossible, LeastNodes(impossible),
                         NodeShapes(nodes_, remains_).Fitting(impossible), nodes_);
    }
    return *why;
  }
  const auto waits = waiting_.find(job.name());
  if (waits != waiting_.end()) {
    *until = waits->second.until;
    return waits->second.reason;
  }
  const bool behind = job.phase() == v1::QUEUED && queue_.waiting().size() > kQueueDepth;
  return behind && !agents_.AnyExpected() ? kBehindManyOthers : "";
}

void Cluster::SendToAgent(const std::string& node, v1::AgentOrder order) {
  // One that is away hears it when it comes back.
  if (!agents_.IsConnected(node)) return;
  v1::ServerMessage message = step::MessageFor("", 0);
  *message.mutable_agent() = std::move(order);
  out_.Send(*agents_.Find(node)->stream, std::move(message));
}

void Cluster::SendStart(const saved::PlacedPart& part) {
  const state::Job* job = FindJob(context_.state, part.part().job());
  // An ended one has dropped what it started, and its part is taken back in a moment.
  if (IsOver(job)) return;
  v1::AgentOrder order;
  *order.mutable_start()->mutable_part() = part.part();
  *order.mutable_start()->mutable_spec() = job->saved.spec();
  order.mutable_start()->set_user(job->user());
  for (const auto& [id, other] : context_.state.cluster.parts) {
    if (other.part().job() == part.part().job() && !other.taken_back()) {
      order.mutable_start()->add_nodes(other.part().node());
    }
  }
  SendToAgent(part.part().node(), std::move(order));
}

void Cluster::SendStop(const v1::Part& part) {
  const state::Job* job = FindJob(context_.state, part.job());
  const absl::Duration margin = context_.config.stop_margin;
  v1::AgentOrder order;
  order.mutable_stop()->set_id(part.id());
  // The launchers of a job that is over have been told, and end by themselves.
  *order.mutable_stop()->mutable_after() = ToProto(IsOver(job) ? margin : absl::Duration());
  *order.mutable_stop()->mutable_grace() =
      ToProto((job == nullptr ? state::Policy() : job->policy).stop_grace + margin);
  SendToAgent(part.node(), std::move(order));
}

}  // namespace cadre::cluster
