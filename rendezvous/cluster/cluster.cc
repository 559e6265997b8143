#include "rendezvous/cluster/cluster.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/cluster/allocations.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/cluster/steps.h"
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
  for (const auto& [name, job] : context_.state.jobs) {
    queue_.Add(job);
    if (IsStep(job) && !IsOver(&job)) steps_[job.id()] = name;
  }
  EndSteps();
  changed_ = !context_.state.cluster.nodes.empty();
}

void Cluster::OnAgentMessage(StreamId stream, const v1::NodeMessage& message) {
  const v1::AgentReport& report = message.agent();
  const std::string* known = agents_.NodeOf(stream);
  if (known == nullptr) {
    if (!report.has_joined()) {
      return out_.Close(stream, absl::InvalidArgumentError(
                                    "the first message on an agent's stream must be AgentJoined"));
    }
    const absl::Status may = CheckAgentMayJoin(message);
    if (!may.ok()) return out_.Reject(stream, "", may.code(), std::string(may.message()));
    return OnAgentJoined(stream, message);
  }
  const std::string node = *known;
  agents_.RenewLease(node, context_.clock.lease_now());
  if (report.has_ended()) return OnAllocationEnded(node, report.ended());
  if (report.has_remains()) return OnUnkillableProcesses(node, report.remains());
  if (report.closing()) return OnAgentClosing(node);
  if (report.leaving()) return OnAgentLeaving(node);
}

absl::Status Cluster::CheckAgentMayJoin(const v1::NodeMessage& message) const {
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
    return absl::AlreadyExistsError(absl::StrCat(
        "node ", joined.node(),
        " already has a connected agent; give this agent another name with --node-name"));
  }
  return CheckNewNode(joined.node(), context_.state.cluster);
}

void Cluster::OnAgentJoined(StreamId stream, const v1::NodeMessage& message) {
  const v1::AgentJoined& joined = message.agent().joined();
  const std::string& node = joined.node();
  if (const Agent* before = agents_.Find(node); before != nullptr && before->stream.has_value()) {
    out_.Close(*before->stream,
               absl::AbortedError("a newer stream of the same agent replaced this one"));
  }
  SaveNode(joined);
  const std::set<uint64_t> runs(joined.parts().begin(), joined.parts().end());
  agents_.Connect(node, stream, message.incarnation(), runs, context_.clock.lease_now());
  agents_.SetVersion(node, rpc::VersionIn(joined));
  v1::ServerMessage welcome = step::MessageFor("", 0);
  welcome.mutable_welcome()->set_server_id(context_.config.server_id);
  *welcome.mutable_welcome()->mutable_lease() = ToProto(context_.config.lease);
  *welcome.mutable_welcome()->mutable_version() = rpc::ThisVersion();
  out_.Send(stream, std::move(welcome));
  ReconcileAllocations(node, runs);
  changed_ = true;
}

void Cluster::SaveNode(const v1::AgentJoined& joined) {
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
  known->set_memory(joined.memory());
  *known->mutable_labels() = joined.labels();
  out_.Commit(std::move(record));
  out_.Note("", absl::StrCat(
                    "node ", joined.node(), " of the cluster: ", Count(joined.cpus(), "CPU"), ", ",
                    Count(joined.gpus(), "GPU"), ", ",
                    joined.memory() == 0 ? "memory is not counted"
                                         : absl::StrCat(SizeText(joined.memory()), " of memory")));
}

void Cluster::ReconcileAllocations(const std::string& node, const std::set<uint64_t>& runs) {
  const std::map<uint64_t, saved::PlacedPart>& allocations = context_.state.cluster.allocations;
  const std::vector<saved::PlacedPart> here = AllocationsOn(context_.state, node);
  for (const uint64_t id : runs) {
    const auto allocation = allocations.find(id);
    if (allocation != allocations.end() && allocation->second.part().node() == node) continue;
    agents_.AddLeftover(node, id);
    v1::Part unknown;
    unknown.set_id(id);
    unknown.set_node(node);
    SendStop(unknown);
  }
  for (const saved::PlacedPart& allocation : here) {
    const bool is_run = runs.count(allocation.part().id()) != 0;
    if (!allocation.taken_back()) {
      if (!is_run) SendStart(allocation);
    } else if (is_run) {
      SendStop(allocation.part());
    } else {
      v1::PartReport gone;
      gone.set_id(allocation.part().id());
      OnAllocationEnded(node, gone);
    }
  }
}

void Cluster::OnAllocationEnded(const std::string& node, const v1::PartReport& report) {
  changed_ = true;
  agents_.OnAllocationEnded(node, report.id());
  const std::map<uint64_t, saved::PlacedPart>& allocations = context_.state.cluster.allocations;
  const auto found = allocations.find(report.id());
  if (found == allocations.end() || found->second.part().node() != node) return;
  const saved::PlacedPart allocation = found->second;
  const bool unasked =
      !allocation.taken_back() && !IsOver(FindJob(context_.state, allocation.part().job()));
  if (unasked) {
    return OnLauncherEndedUnasked(allocation, OneLine(report.text(), kMaxEndTextBytes),
                                  report.blame());
  }
  EndAllocation(allocation, nullptr);
}

void Cluster::OnUnkillableProcesses(const std::string& node, const v1::PartRemains& remains) {
  const auto found = context_.state.cluster.allocations.find(remains.id());
  const bool its =
      found != context_.state.cluster.allocations.end() && found->second.part().node() == node;
  if (!its && agents_.Find(node)->leftovers.count(remains.id()) == 0) return;
  const std::string text = OneLine(remains.text(), kMaxEndTextBytes);
  agents_.AddUnkillable(node, remains.id(), text);
  changed_ = true;
  if (!its || found->second.taken_back()) return;
  const std::string how = absl::StrCat("its launcher ended, and a process that it left ", text);
  job_events_.push_back(LauncherEnded{found->second.part().job(), node, how});
  TakeBack(remains.id());
}

void Cluster::StreamClosed(StreamId stream) {
  if (!IsAgent(stream)) return;
  agents_.Disconnect(stream, context_.clock.lease_now());
  changed_ = true;
}

void Cluster::OnAgentClosing(const std::string& node) {
  if (agents_.Find(node)->closing) return;
  agents_.SetClosing(node);
  changed_ = true;
  out_.Note("", absl::StrCat("node ", node, " is leaving the cluster: its agent ends what runs"));
  for (const saved::PlacedPart& allocation : AllocationsOn(context_.state, node)) {
    if (!allocation.taken_back()) TakeBack(allocation.part().id());
  }
}

void Cluster::OnAgentLeaving(const std::string& node) {
  EndAllocationsOf(node);
  out_.Close(*agents_.Find(node)->stream, absl::OkStatus());
  agents_.Erase(node);
  out_.Note("", absl::StrCat("node ", node, " has left the cluster"));
  // A drain that an administrator ordered is kept.
  if (context_.state.cluster.nodes.at(node).drained()) return;
  v1::Record record;
  record.mutable_cluster_node_gone()->set_node(node);
  out_.Commit(std::move(record));
}

void Cluster::RunTimers() {
  if (queue_.NextEligible() <= context_.now) {
    queue_.ReconsiderNotEligible();
    changed_ = true;
  }
  if (backoffs_.Expire(context_.clock.lease_now())) {
    changed_ = true;
    queue_.ReconsiderBackedOff();
  }
  while (const std::optional<std::string> node = agents_.NextExpired(context_.clock)) {
    const Agent& agent = *agents_.Find(*node);
    if (agent.stream.has_value()) {
      out_.Close(*agent.stream, absl::DeadlineExceededError(absl::StrCat(
                                    "the server has received nothing from this agent for ",
                                    ShortDuration(context_.config.lease))));
    }
    agents_.Erase(*node);
    out_.Note("",
              absl::StrCat(
                  "the agent of node ", *node,
                  " is lost: its lease has expired, and jobs lose their allocations on the node"));
    EndAllocationsOf(*node);
  }
}

void Cluster::EndAllocationsOf(const std::string& node) {
  for (const saved::PlacedPart& allocation : AllocationsOn(context_.state, node))
    EndAllocation(allocation, nullptr);
  changed_ = true;
}

void Cluster::EndAllocation(const saved::PlacedPart& allocation, const v1::AvoidedNode* avoid) {
  CADRE_CHECK(context_.state.cluster.allocations.count(allocation.part().id()) == 1, "allocation ",
              allocation.part().id(), " has ended already");
  v1::Record record;
  v1::PartEnded* ended = record.mutable_part_ended();
  ended->set_id(allocation.part().id());
  ended->set_at_us(context_.now.micros());
  if (avoid != nullptr) *ended->mutable_avoid() = *avoid;
  const state::Job* job = FindJob(context_.state, allocation.part().job());
  const bool waits_again =
      !IsOver(job) && (IsUnstarted(*job) || job->saved.submission().requeued());
  ended->set_back_to_queue(waits_again && IsLastAllocation(context_.state, allocation.part()));
  const bool back = ended->back_to_queue();
  const bool requeued = back && job->saved.submission().requeued();
  out_.Commit(std::move(record));
  if (back) queue_.Add(*job);
  if (requeued) out_.Note(allocation.part().job(), "is in the queue again");
}

void Cluster::Drain(const std::string& node, bool drained, const std::string& reason) {
  const auto found = context_.state.cluster.nodes.find(node);
  if (found == context_.state.cluster.nodes.end()) return;
  const std::string why = OneLine(reason, state::kMaxNodeTextBytes);
  v1::Record record;
  saved::ClusterNode* changed = record.mutable_cluster_node_set()->mutable_node();
  *changed = found->second;
  // A node that is drained again without a reason keeps the first one.
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
  for (const auto& [id, allocation] : context_.state.cluster.allocations) {
    if (allocation.part().job() == job && !allocation.taken_back()) ids.push_back(id);
  }
  if (ids.empty()) return;
  changed_ = true;
  const state::Job* gives = FindJob(context_.state, job);
  if (gives == nullptr || !gives->saved.submission().requeued()) {
    out_.Note(job, "gives its nodes back, because others that it needs are not available");
  }
  for (const uint64_t id : ids) TakeBack(id);
}

void Cluster::TakeBackFrom(const std::string& job, const std::string& node) {
  for (const auto& [id, allocation] : context_.state.cluster.allocations) {
    if (allocation.taken_back() || allocation.part().job() != job ||
        allocation.part().node() != node)
      continue;
    return TakeBack(id);
  }
}

void Cluster::TakeBack(uint64_t id) {
  CADRE_CHECK(!context_.state.cluster.allocations.at(id).taken_back(), "allocation ", id,
              " was taken back already");
  v1::Record record;
  record.mutable_part_taken_back()->set_id(id);
  out_.Commit(std::move(record));
  SendStop(context_.state.cluster.allocations.at(id).part());
}

namespace {

// The nodes that the job has and that are not being taken back.
uint32_t ActiveShares(const ScheduleJob& job) {
  return static_cast<uint32_t>(std::count_if(job.held.begin(), job.held.end(),
                                             [](const HeldShare& held) { return !held.ending; }));
}

// A batch job that runs gives up no nodes to others, since its script counts on all of them.
void KeepNodesOfScript(ScheduleJob* job) {
  if (job->batch) job->min = std::clamp(ActiveShares(*job), job->min, job->max);
}

}  // namespace

void Cluster::Schedule() {
  changed_ = false;
  TakeBackFromEnded();
  TakeBackWithoutScript();
  // A restarted server does not yet know which nodes there are.
  if (agents_.AnyExpected()) return;
  UpdateNodes();
  const BackedOffNodes backed_off = backoffs_.ByJob();
  std::vector<ScheduleJob> jobs =
      BegunJobs(context_.state, queue_.begun(), HeldShares(context_.state, agents_), backed_off,
                context_.config.stop_margin);
  for (ScheduleJob& job : jobs) {
    KeepNodesOfScript(&job);
    const state::Job* begun = FindJob(context_.state, job.name);
    if (begun == nullptr) continue;
    // It gets no node now.
    if (IsScriptEnding(*begun)) job.min = job.max = 0;
    // It ends with its lost node, and no other one need begin for it.
    const bool ends = !begun->policy.requeue && begun->phase() == v1::RUNNING;
    if (ends && ActiveShares(job) < job.min) job.min = job.max = ActiveShares(job);
  }
  for (ScheduleJob& job : NextInQueue(backed_off)) jobs.push_back(std::move(job));
  cluster::Schedule schedule = PlaceJobs(nodes_, jobs, context_.now);
  for (const std::string& name : schedule.impossible) {
    const state::Job* job = FindJob(context_.state, name);
    if (job == nullptr || job->phase() != v1::QUEUED) continue;
    queue_.SetAside(name, schedule.waiting.at(name).reason,
                    backed_off.count(job->saved.submission().order()) != 0);
    // The next pass has room for a job that this one did not look at.
    changed_ = true;
  }
  Execute(schedule);
  for (const auto& [name, why] : schedule.hopeless) {
    const state::Job* job = FindJob(context_.state, name);
    // A job that has begun waits for another node, as after the loss of any node, but not for ever
    // in the queue.
    if (IsOver(job) || (job->saved.generations() > 0 && job->phase() != v1::QUEUED)) continue;
    // The text begins with what happened, since tables show only its beginning.
    job_events_.push_back(CannotBegin{
        name, absl::StrCat("no node is left for it; tried: ", NodesTried(*job), "; it needs ", why),
        true});
  }
  TakeBackFromUnstarted(schedule);
  waiting_ = std::move(schedule.waiting);
  considered_ = std::move(jobs);
  expected_starts_.reset();
  ScheduleSteps(backed_off);
}

void Cluster::ScheduleSteps(const BackedOffNodes& backed_off) {
  for (const auto& [id, name] : steps_) {
    const state::Job& step = *FindJob(context_.state, name);
    const auto excluded = backed_off.find(id);
    const StepPlacement placement =
        PlaceStep(step, context_.state, agents_,
                  excluded == backed_off.end() ? std::set<std::string>() : excluded->second);
    if (!placement.impossible.empty()) {
      // A step that runs may do without the node, or stops first.
      if (step.phase() == v1::QUEUED || step.phase() == v1::GATHERING) {
        job_events_.push_back(
            CannotBegin{name, placement.impossible, step.saved.generations() > 0});
      }
    } else if (!placement.waits_for.empty()) {
      waiting_[name].reason = placement.waits_for;
    }
    std::vector<uint64_t> placed;
    for (const StepShare& share : placement.place) {
      const std::string reason = "it is its batch job's";
      placed.push_back(Place({name, share.node, share.share, reason}, share.within));
    }
    for (const uint64_t part : placed) SendStart(context_.state.cluster.allocations.at(part));
  }
}

void Cluster::UpdateNodes() {
  std::vector<ScheduleNode> nodes = NodesToSchedule(context_.state, agents_);
  std::vector<HeldShare> unkillable;
  if (!agents_.unkillable().empty()) {
    for (const auto& [job, shares] : HeldShares(context_.state, agents_)) {
      std::copy_if(shares.begin(), shares.end(), std::back_inserter(unkillable),
                   [](const HeldShare& held) { return held.unkillable; });
    }
  }
  if (nodes != nodes_ || unkillable != unkillable_) queue_.ReconsiderAll();
  nodes_ = std::move(nodes);
  unkillable_ = std::move(unkillable);
}

std::vector<ScheduleJob> Cluster::NextInQueue(const BackedOffNodes& backed_off) {
  const NodeShapes shapes(nodes_, unkillable_);
  std::vector<ScheduleJob> jobs;
  std::vector<std::string> impossible;
  last_considered_.reset();
  std::vector<std::pair<std::string, NotEligible>> not_eligible;
  RunningElements running = CountRunningElements(context_.state, queue_.begun());
  for (const JobQueue::Key& key : queue_.waiting()) {
    if (jobs.size() == kQueueDepth) break;
    const std::string& name = std::get<std::string>(key);
    const state::Job& queued = *FindJob(context_.state, name);
    std::optional<NotEligible> why =
        WhyNotEligible(queued, context_.state, running, context_.config, context_.now);
    if (why.has_value()) {
      not_eligible.emplace_back(name, *std::move(why));
      continue;
    }
    // Of an array no more elements are tried in one pass than may run.
    if (const uint64_t array = queued.saved.submission().array(); array != 0) ++running[array];
    ScheduleJob job = JobToSchedule(queued, backed_off, context_.config.stop_margin);
    if (NodeShapes::TreatsAllAlike(job) && !shapes.CanRun(job)) {
      impossible.push_back(name);
    } else {
      jobs.push_back(std::move(job));
      if (jobs.size() == kQueueDepth) last_considered_ = key;
    }
  }
  for (const std::string& name : impossible) queue_.SetAside(name, "", false);
  for (auto& [name, why] : not_eligible) SetNotEligible(name, std::move(why));
  return jobs;
}

void Cluster::SetNotEligible(const std::string& name, NotEligible why) {
  const state::Job& job = *FindJob(context_.state, name);
  if (why.never && !job.saved.spec().queue().keep_if_never()) {
    job_events_.push_back(
        NeverEligible{name, absl::StrCat("it waited for what can never be: ", why.reason)});
  }
  queue_.SetNotEligible(name, std::move(why));
}

bool Cluster::IsScriptEnding(const state::Job& job) const {
  if (!job.saved.spec().has_batch()) return false;
  const auto& allocations = context_.state.cluster.allocations;
  return std::any_of(allocations.begin(), allocations.end(), [&](const auto& one) {
    const v1::Part& part = one.second.part();
    return part.job() == job.name() && one.second.taken_back() && !part.holds() &&
           agents_.IsConnected(part.node()) && !agents_.HasUnkillable(part.node(), part.id());
  });
}

void Cluster::JobChanged(const std::string& name) {
  const state::Job* job = FindJob(context_.state, name);
  if (IsOver(job)) {
    queue_.Remove(name);
    queue_.ReconsiderNotEligible();
    changed_ = true;
    if (job != nullptr) steps_.erase(job->id());
    return EndSteps();
  }
  if (IsStep(*job)) {
    steps_[job->id()] = name;
    changed_ = true;
    return;
  }
  if (job->saved.spec().has_batch()) EndSteps();
  queue_.Add(*job);
  // A job behind those that a pass looks at needs no new pass.
  const JobQueue::Key* key = queue_.KeyOf(name);
  if (key == nullptr || !last_considered_.has_value() || *key < *last_considered_) changed_ = true;
}

void Cluster::EndSteps() {
  for (auto next = steps_.begin(); next != steps_.end();) {
    const auto one = next++;
    const state::Job* step = FindJob(context_.state, one->second);
    if (IsOver(step)) {
      steps_.erase(one);
      continue;
    }
    const std::string why = WhyStepIsOver(*step, context_.state);
    if (!why.empty()) job_events_.push_back(StepIsOver{one->second, why});
  }
}

void Cluster::TakeBackFromEnded() {
  std::vector<uint64_t> over;
  for (const auto& [id, allocation] : context_.state.cluster.allocations) {
    if (!allocation.taken_back() && IsOver(FindJob(context_.state, allocation.part().job())))
      over.push_back(id);
  }
  for (const uint64_t id : over) TakeBack(id);
}

void Cluster::TakeBackWithoutScript() {
  const auto& allocations = context_.state.cluster.allocations;
  std::set<std::string> lost;
  for (const auto& [id, allocation] : allocations) {
    if (allocation.part().holds() && !allocation.taken_back()) lost.insert(allocation.part().job());
  }
  if (lost.empty()) return;
  for (const auto& [id, allocation] : allocations) {
    if (!allocation.part().holds() && !allocation.taken_back()) lost.erase(allocation.part().job());
  }
  for (const std::string& name : lost) GiveBack(name);
}

void Cluster::TakeBackFromUnstarted(const cluster::Schedule& schedule) {
  std::vector<uint64_t> ids;
  for (const auto& [id, allocation] : context_.state.cluster.allocations) {
    const std::string& name = allocation.part().job();
    // A hopeless job ends anyway.
    if (allocation.taken_back() || schedule.waiting.count(name) == 0 ||
        schedule.hopeless.count(name) != 0) {
      continue;
    }
    const state::Job* job = FindJob(context_.state, name);
    if (job == nullptr || !IsUnstarted(*job)) continue;
    ids.push_back(id);
    out_.Note(name, absl::StrCat("gives back node ", allocation.part().node(),
                                 ", because others that it needs are not available"));
  }
  for (const uint64_t id : ids) TakeBack(id);
}

void Cluster::Execute(const cluster::Schedule& schedule) {
  for (const Withdrawn& withdrawn : schedule.withdraw) {
    out_.Note(withdrawn.job,
              absl::StrCat("gives up node ", withdrawn.node, ": ", withdrawn.reason));
    TakeBackFrom(withdrawn.job, withdrawn.node);
  }
  std::vector<uint64_t> placed;
  for (const Placed& one : schedule.place) placed.push_back(Place(one, 0));
  // Sent after all are placed, since each order lists the nodes of all allocations.
  for (const uint64_t id : placed) SendStart(context_.state.cluster.allocations.at(id));
}

uint64_t Cluster::Place(const Placed& placed, uint64_t within) {
  const state::Job* job = FindJob(context_.state, placed.job);
  v1::Record record;
  v1::Part* allocation = record.mutable_part_placed()->mutable_part();
  const uint64_t id = context_.state.counters.last_part() + 1;
  allocation->set_id(id);
  allocation->set_job(placed.job);
  allocation->set_node(placed.node);
  allocation->set_workers(placed.share.workers);
  allocation->set_cpus(placed.share.cpus);
  allocation->set_gpus(placed.share.gpus);
  allocation->set_memory(placed.share.memory);
  allocation->set_within(within);
  allocation->set_holds(job != nullptr && job->saved.spec().has_batch() &&
                        RunsScript(context_.state, *job));
  record.mutable_part_placed()->set_at_us(context_.now.micros());
  const bool leaves_queue = job != nullptr && job->phase() == v1::QUEUED;
  record.mutable_part_placed()->set_leaves_queue(leaves_queue);
  out_.Commit(std::move(record));
  if (leaves_queue) {
    queue_.Add(*job);
    // Others may wait for this one to begin.
    queue_.ReconsiderNotEligible();
    changed_ = true;
  }
  out_.Note(placed.job, absl::StrCat("gets node ", placed.node, ": ", placed.reason));
  job_events_.push_back(Granted{placed.job});
  return id;
}

std::string Cluster::WaitsFor(const state::Job& job, MonoTime at) const {
  if (job.user().empty() || (job.phase() != v1::QUEUED && job.phase() != v1::GATHERING)) return "";
  if (job.saved.submission().requeued()) {
    return "its launchers to end, since it was put back into the queue";
  }
  if (job.phase() == v1::GATHERING && IsScriptEnding(job)) {
    return "its script to end on the node that it was taken from";
  }
  const bool queued = job.phase() == v1::QUEUED;
  const std::string launchers = queued ? "" : LaunchersAwaited(context_.state, job);
  MonoTime until = MonoTime::Never();
  const std::string reason = WaitReason(job, &until);
  if (reason.empty()) {
    return queued ? "the agents of the cluster's nodes to come back" : launchers;
  }
  const bool known = queued && until != MonoTime::Never();
  const std::string remains = UnkillableProcesses(context_.state, agents_);
  return absl::StrCat(
      launchers, launchers.empty() ? "" : ", and for ", reason,
      known ? absl::StrCat("; within ", ShortDuration(until - at), " at the latest") : "",
      remains.empty() ? "" : "; ", remains);
}

namespace {

// Returns how long the newest job of the same user and name ran that succeeded; nothing if there is
// none.
std::optional<absl::Duration> UsualDuration(const state::Job& job, const state::State& state) {
  const auto ids = state.by_submitted_name.find(job.submitted_name());
  if (ids == state.by_submitted_name.end()) return std::nullopt;
  for (auto id = ids->second.rbegin(); id != ids->second.rend(); ++id) {
    const state::Job& other = state.jobs.at(state.by_id.at(*id));
    const saved::JobTimes& times = other.saved.times();
    if (other.user() != job.user() || other.phase() != v1::SUCCEEDED) continue;
    return absl::Microseconds(times.ended_us() - times.began_us());
  }
  return std::nullopt;
}

}  // namespace

StartRange Cluster::ExpectedStart(const state::Job& job, MonoTime at) const {
  if (job.user().empty() || job.phase() != v1::QUEUED) return {};
  if (const NotEligible* why = queue_.WhyNotEligible(job.name()); why != nullptr) {
    return {why->until, why->until};
  }
  if (!expected_starts_.has_value()) {
    std::map<std::string, absl::Duration> usual;
    for (const ScheduleJob& one : considered_) {
      const state::Job* known = FindJob(context_.state, one.name);
      if (IsOver(known)) continue;
      const std::optional<absl::Duration> runs = UsualDuration(*known, context_.state);
      if (runs.has_value()) usual[one.name] = *runs;
    }
    expected_starts_ = EstimateStarts(nodes_, considered_, at, usual);
  }
  const auto found = expected_starts_->find(job.name());
  if (found == expected_starts_->end()) return {};
  // What was expected by now may happen at any time.
  return {std::max(found->second.from, at),
          found->second.until < at ? MonoTime::Never() : found->second.until};
}

std::string Cluster::QueueReason(const state::Job& job) const {
  if (job.user().empty() || (job.phase() != v1::QUEUED && job.phase() != v1::GATHERING)) return "";
  if (job.saved.submission().requeued()) return "BeginTime";
  if (const NotEligible* why = queue_.WhyNotEligible(job.name()); why != nullptr) return why->word;
  if (queue_.ReasonSetAside(job.name()) != nullptr) return "ReqNodeNotAvail";
  const auto waits = waiting_.find(job.name());
  if (waits == waiting_.end()) return job.phase() == v1::QUEUED ? "Priority" : "";
  return waits->second.first ? "Resources" : "Priority";
}

// Returns why the job waits; empty if no pass has looked at it.
std::string Cluster::WaitReason(const state::Job& job, MonoTime* until) const {
  if (std::string* why = queue_.ReasonSetAside(job.name()); why != nullptr) {
    if (why->empty()) {
      const ScheduleJob impossible = JobToSchedule(job, {}, context_.config.stop_margin);
      *why = MissingText(impossible, LeastNodes(impossible),
                         NodeShapes(nodes_, unkillable_).Fitting(impossible), nodes_);
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
  // An agent that is disconnected gets the order when it reconnects.
  if (!agents_.IsConnected(node)) return;
  v1::ServerMessage message = step::MessageFor("", 0);
  *message.mutable_agent() = std::move(order);
  out_.Send(*agents_.Find(node)->stream, std::move(message));
}

void Cluster::SendStart(const saved::PlacedPart& allocation) {
  const state::Job* job = FindJob(context_.state, allocation.part().job());
  // A job that has ended no longer has its spec, and its allocation is released in a moment.
  if (IsOver(job)) return;
  v1::AgentOrder order;
  *order.mutable_start()->mutable_part() = allocation.part();
  v1::StartPart* start = order.mutable_start();
  *start->mutable_spec() = job->saved.spec();
  start->set_user(job->user());
  for (std::string& node : state::AllocatedNodes(context_.state.cluster, *job)) {
    start->add_nodes(std::move(node));
  }
  start->set_job_id(job->id());
  start->set_job_name(job->submitted_name());
  start->set_restarts(static_cast<uint32_t>(job->saved.generations()));
  const saved::Submission& submission = job->saved.submission();
  start->set_array(submission.array());
  start->set_array_index(submission.array_index());
  start->set_array_size(submission.array_size());
  start->set_array_first(submission.array_first());
  start->set_array_last(submission.array_last());
  if (IsStep(*job)) {
    start->set_step_of(job->saved.submission().step_of());
    start->set_step(job->saved.submission().step());
    const state::Job* batch = BatchJobOf(*job, context_.state);
    if (batch != nullptr) {
      start->set_job_name(batch->submitted_name());
      for (std::string& node : state::AllocatedNodes(context_.state.cluster, *batch)) {
        start->add_batch_nodes(std::move(node));
      }
    }
  }
  SendToAgent(allocation.part().node(), std::move(order));
}

void Cluster::SendStop(const v1::Part& allocation) {
  const state::Job* job = FindJob(context_.state, allocation.job());
  const absl::Duration margin = context_.config.stop_margin;
  v1::AgentOrder order;
  order.mutable_stop()->set_id(allocation.id());
  // The launchers of a job that has ended were told so, and end by themselves.
  *order.mutable_stop()->mutable_after() = ToProto(IsOver(job) ? margin : absl::Duration());
  *order.mutable_stop()->mutable_grace() =
      ToProto((job == nullptr ? state::Policy() : job->policy).stop_grace + margin);
  SendToAgent(allocation.node(), std::move(order));
}

// What follows when a launcher ends unasked.

namespace {

// How often a job that has never begun is tried: if its launcher ends early on so many nodes, the
// nodes are hardly the cause.
constexpr uint32_t kFailedStartsMax = 8;

}  // namespace

void Cluster::OnLauncherEndedUnasked(const saved::PlacedPart& allocation, const std::string& how,
                                     v1::PartBlame blame) {
  const std::string& name = allocation.part().job();
  const std::string& node = allocation.part().node();
  v1::AvoidedNode avoid;
  avoid.set_node(node);
  avoid.set_reason(how);
  avoid.set_unfit(!allocation.joined() && blame == v1::BLAME_NODE);
  EndAllocation(allocation, &avoid);
  const std::string text =
      absl::StrCat(allocation.joined() ? "its launcher on node " : "it could not begin on node ",
                   node, allocation.joined() ? " ended unexpectedly: " : ": ", how);
  out_.Note(name, text);
  job_events_.push_back(LauncherEnded{name, node, absl::StrCat("its launcher ended: ", how)});
  const state::Job& job = *FindJob(context_.state, name);
  const uint32_t failed_starts = job.saved.submission().failed_starts();
  if (!allocation.joined() && blame == v1::BLAME_NOBODY) {
    backoffs_.Add(job.saved.submission().order(), node, failed_starts, context_.clock.lease_now());
  }
  if (job.saved.generations() > 0) return;
  if (blame == v1::BLAME_JOB) {
    job_events_.push_back(CannotBegin{name, text, false});
  } else if (failed_starts >= kFailedStartsMax) {
    job_events_.push_back(CannotBegin{
        name, absl::StrCat("it was tried ", failed_starts, " times: ", NodesTried(job)), true});
  }
}

}  // namespace cadre::cluster
