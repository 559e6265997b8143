// Methods of Job (job.h) that form, run, stop and end generations, with the deadlines of all that.
#include "rendezvous/job/generation.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"
#include "rendezvous/job/failure.h"
#include "rendezvous/job/formation_decision.h"
#include "rendezvous/job/job.h"
#include "rendezvous/job/job_records.h"
#include "rendezvous/job/orders.h"
#include "rendezvous/job/progress_and_usage.h"
#include "rendezvous/job/restart_decision.h"
#include "rendezvous/job/status.h"
#include "rendezvous/job/verdict.h"
#include "rendezvous/state/policy.h"
#include "rpc/job_progress.h"

namespace cadre::job {
namespace {

MonoTime QueueDeadline(const JobView& view) {
  const int64_t deadline_ms = view.job.saved.spec().queue().deadline_unix_ms();
  if (deadline_ms == 0 || view.job.user().empty()) return MonoTime::Never();
  return view.context.clock.FromHost(view.context.config.AtUnixMs(deadline_ms));
}

v1::Failure TotalTimeout(const JobView& view) {
  const state::Job& job = view.job;
  return PlainFailure(v1::TOTAL_TIMEOUT, "", job.generation.number(),
                      view.context.clock.now() >= QueueDeadline(view)
                          ? std::string("its deadline has passed")
                          : absl::StrCat("the job took longer than timeouts.total, ",
                                         ShortDuration(job.policy.total_timeout)));
}

// `at_once`: nodes that have not stopped yet get no more grace.
void SendStops(const state::Job& job, bool at_once, JobOutbox& out) {
  for (const saved::Member& member : job.generation.saved.members()) {
    if (member.lost() || (at_once && member.cleared())) continue;
    v1::ServerMessage message = out.Message();
    *message.mutable_stop() = MakeStop(job, member.node());
    if (at_once) {
      message.mutable_stop()->clear_grace();
      message.mutable_stop()->clear_rejoin();
    }
    out.SendTo(member.node(), std::move(message));
  }
}

v1::Failure StartTimeout(const state::Job& job) {
  const state::Generation& generation = job.generation;
  const auto& workers = generation.saved.workers();
  const uint32_t rank =
      std::find(workers.begin(), workers.end(), saved::RANK_ASSIGNED) - workers.begin();
  const saved::Member& member = generation.member_of(rank);
  v1::Failure failure =
      PlainFailure(v1::START_TIMEOUT, member.node(), generation.number(),
                   absl::StrCat(RanksNotStarted(generation), " did not start within ",
                                ShortDuration(job.policy.start_timeout), " in generation ",
                                generation.number()));
  failure.set_rank(rank);
  failure.set_local_rank(rank - member.first_rank());
  return failure;
}

// Returns the nodes by node rank; empty for a node that is lost.
std::vector<std::string> NodesOfLastGeneration(const state::Job& job) {
  std::vector<std::string> nodes;
  for (const saved::Member& member : job.generation.saved.members()) {
    nodes.push_back(member.lost() ? "" : member.node());
  }
  return nodes;
}

// Chooses nodes that took part before, then others in order of arrival.
std::vector<RankCandidate> ChooseCandidates(const state::Job& job,
                                            const std::vector<std::string>& ready, size_t size,
                                            const std::vector<std::string>& previous) {
  const std::set<std::string> survivors(previous.begin(), previous.end());
  std::vector<std::pair<bool, RankCandidate>> chosen;
  for (const std::string& name : ready) {
    const saved::AdmittedNode& admitted = job.nodes.at(name);
    const saved::Node& node = admitted.node();
    chosen.push_back(
        {survivors.count(name) == 0,
         {name, node.host(), node.slots(), node.wanted_node_rank(), admitted.admission()}});
  }
  std::sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.first, a.second.admission) <
           std::make_pair(b.first, b.second.admission);
  });
  std::vector<RankCandidate> candidates;
  for (size_t i = 0; i < size; ++i) candidates.push_back(std::move(chosen.at(i).second));
  return candidates;
}

// Whether the cluster's node was lost, as far as is known, and not only the job's launcher there.
// The launcher of a batch job has nothing of the script in it that could end it.
bool IsLossOfNode(const state::Job& job, const v1::Failure& failure) {
  if (failure.cause() == v1::NODE_LOST && job.saved.spec().has_batch()) return true;
  const auto& avoided = job.saved.submission().avoided();
  return failure.cause() == v1::NODE_LOST &&
         std::none_of(avoided.begin(), avoided.end(),
                      [&](const v1::AvoidedNode& node) { return node.node() == failure.node(); });
}

GenerationRun GenerationRunOf(const state::Job& job, const ProgressLog& progress, MonoTime now) {
  const saved::Generation& generation = job.generation.saved;
  const int64_t stopped_us = generation.stop().ordered_us();
  const MonoTime end = stopped_us == 0 ? now : MonoTime::FromMicros(stopped_us);
  GenerationRun run;
  run.lasted = end - MonoTime::FromMicros(generation.formed_us());
  run.step = progress.StepOf(job);
  run.furthest_step = job.saved.restarts().furthest_step();
  run.start = run.lasted;
  const auto& generations = job.saved.timeline().generations();
  if (generations.empty() || generations.rbegin()->running_us() == 0) return run;
  const v1::GenerationTimeline& times = *generations.rbegin();  // of the ending generation
  const int64_t began_us = std::max(times.running_us() + times.imports_us(),
                                    progress.FirstProgressUs(times.generation()));
  run.start = absl::Microseconds(began_us - times.formed_us());
  return run;
}

// Decides what would follow the current generation if `root_cause` ended it.
RestartDecision DecideNext(const JobView& view, const std::optional<v1::Failure>& root_cause,
                           bool made_progress) {
  const state::Job& job = view.job;
  const auto& members = job.generation.saved.members();
  const uint32_t survivors = std::count_if(
      members.begin(), members.end(), [](const saved::Member& member) { return !member.lost(); });
  const saved::Restarts& restarts = job.saved.restarts();
  ClusterContext cluster;
  cluster.submitted = !job.user().empty();
  cluster.lost_node = root_cause.has_value() && IsLossOfNode(job, *root_cause);
  cluster.free_restarts = restarts.all() - restarts.counted();
  return DecideRestart(root_cause, job.policy,
                       {restarts.counted_us(), made_progress ? 0 : restarts.in_vain()}, survivors,
                       view.context.now, cluster);
}

}  // namespace

bool Job::AdvancePhase() {
  switch (state_.phase()) {
    case v1::QUEUED:
      return AdvanceQueued();
    case v1::GATHERING:
      return AdvanceGathering();
    case v1::RUNNING:
      return AdvanceRunning();
    case v1::STOPPING:
      return AdvanceStopping();
    default:
      return false;
  }
}

bool Job::AdvanceQueued() {
  if (context_.clock.now() < QueueDeadline(view())) return false;
  const v1::Failure failure = TotalTimeout(view());
  End(v1::FAILED, ExitStatusFor(failure), failure.message(), failure);
  return true;
}

bool Job::AdvanceGathering() {
  if (context_.clock.now() >= TotalDeadline(view())) {
    const v1::Failure failure = TotalTimeout(view());
    End(v1::FAILED, ExitStatusFor(failure), failure.message(), failure);
    return true;
  }
  if (state_.saved.submission().requeued()) return false;
  const FormationDecision decision =
      DecideFormation(GatheringOf(view()), state_.policy, context_.clock.now());
  switch (decision.kind) {
    case FormationDecision::kWait:
      return false;
    case FormationDecision::kForm:
      Form(decision);
      return true;
    case FormationDecision::kGiveUp:
      break;
  }
  if (ClusterOwesNodes(view())) {
    if (!std::exchange(volatile_.gives_back, true)) cluster_events_.gives_back.push_back(name_);
    return false;
  }
  const v1::Failure failure =
      PlainFailure(v1::JOIN_TIMEOUT, "", state_.generation.number(),
                   JoinTimeoutText(view(), cluster_waits_(state_, context_.now)));
  End(v1::FAILED, ExitStatusFor(failure), failure.message(), failure);
  return true;
}

bool Job::AdvanceRunning() {
  const state::Generation& generation = state_.generation;
  const MonoTime now = context_.clock.now();
  if (generation.succeeded == generation.world_size()) {
    End(v1::SUCCEEDED, 0,
        generation.world_size() == 1
            ? "the worker succeeded"
            : absl::StrCat("all ", generation.world_size(), " workers succeeded"),
        std::nullopt);
    return true;
  }
  if (now >= TotalDeadline(view())) {
    const v1::Failure failure = TotalTimeout(view());
    OrderStop(failure.message(), failure);
    return true;
  }
  if (now >= WarningDeadline(view())) Warn();
  if (!AllStarted(generation) && now >= StartDeadline(view())) {
    const v1::Failure failure = StartTimeout(state_);
    OrderStop(failure.message(), failure);
    return true;
  }
  if (AbsenceDeadline(view()) <= now) {
    volatile_.suspects.diagnosis =
        StartDiagnosis(state_.generation, volatile_.connections, "", context_.clock.now(), &out_);
    volatile_.suspects.diagnosis->for_absent = true;
    volatile_.suspects.asked_for_absent = generation.number();
  }
  if (AdvanceDiagnosis()) return true;
  if (state_.policy.scale_up == v1::ElasticPolicy::IMMEDIATELY && CanGrow(view())) {
    const uint32_t size = state_.policy.SizeFor(volatile_.connections.ready());
    OrderStop(absl::StrCat("scale up to ", Count(size, "node")), std::nullopt);
    return true;
  }
  return false;
}

bool Job::AdvanceStopping() {
  if (context_.clock.now() >= TotalDeadline(view()) && !HasDecisiveCause(state_.generation)) {
    const v1::Failure failure = TotalTimeout(view());
    OrderStop(failure.message(), failure);
  }
  if (state_.generation.nodes_busy == 0) {
    RestartOrEnd();
    return true;
  }
  if (context_.clock.now() < StopDeadline(view())) return false;
  std::vector<std::string> silent;
  for (const saved::Member& member : state_.generation.saved.members()) {
    if (!member.lost() && !member.cleared() &&
        volatile_.connections.Find(member.node()) != nullptr) {
      silent.push_back(member.node());
    }
  }
  for (const std::string& node : silent) {
    RemoveNode(node, v1::NODE_LOST, v1::NodeRemoved::DID_NOT_STOP,
               "it did not stop its workers in time",
               absl::DeadlineExceededError("this node did not stop its workers in time"));
    cluster_events_.launchers_lost.emplace_back(name_, node);
  }
  return !silent.empty();
}

void Job::Form(const FormationDecision& decision) {
  CADRE_CHECK(state_.phase() == v1::GATHERING && decision.kind == FormationDecision::kForm &&
                  decision.size >= 1 && decision.size <= volatile_.connections.ready(),
              "job ", name_, ": ", decision.size, " nodes");
  const std::vector<std::string> previous = NodesOfLastGeneration(state_);
  RankAssignment ranks =
      AssignRanks(ChooseCandidates(state_, ReadyNodes(view()), decision.size, previous), previous);
  for (const std::string& note : ranks.notes) out_.Note(note);

  v1::Record record;
  record.mutable_generation_formed()->set_why(decision.why);
  saved::Generation* formed = record.mutable_generation_formed()->mutable_generation();
  formed->set_number(state_.generation.number() + 1);
  for (saved::Member& member : ranks.members) *formed->add_members() = std::move(member);
  const saved::Node& master = state_.nodes.at(formed->members(0).node()).node();
  formed->set_master_addr(master.master_addr().empty() ? master.address() : master.master_addr());
  formed->set_master_port(master.master_port() == 0 ? master.held_port() : master.master_port());
  formed->set_restart_count(state_.saved.restarts().all());
  formed->set_formed_us(context_.now.micros());
  out_.Commit(std::move(record));
  CADRE_CHECK(state_.phase() == v1::RUNNING && state_.generation.nodes() == decision.size, "job ",
              name_);
  out_.Note(absl::StrCat("generation ", state_.generation.number(), " forms with ",
                         Count(decision.size, "node"), ": ", decision.reason));
  const std::string differ = DescribeNodeDifferences(state_);
  if (!differ.empty()) out_.Note(differ);
  volatile_.ordered_at = context_.clock.now();
  const std::vector<RolePlace> roles = RolePlaces(state_);
  for (uint32_t rank = 0; rank < state_.generation.nodes(); ++rank) {
    v1::ServerMessage message = out_.Message();
    *message.mutable_assign() = MakeAssign(state_, rank);
    SetRole(roles, rank, message.mutable_assign());
    out_.SendTo(state_.generation.member(rank).node(), std::move(message));
  }
  MarkDirty(true);
}

void Job::OrderStop(const std::string& reason, const std::optional<v1::Failure>& root_cause) {
  const bool first = state_.phase() == v1::RUNNING;
  // Reports of nodes lead here only with a node rank, which no node has in other phases
  // (NodeRankOf()).
  CADRE_CHECK(first || state_.phase() == v1::STOPPING, "job ", name_);
  v1::Record record;
  v1::StopOrdered* order = record.mutable_stop_ordered();
  order->set_generation(state_.generation.number());
  order->set_reason(reason);
  order->set_rejoin(first && state_.policy.in_place &&
                    DecideNext(view(), root_cause, /*made_progress=*/false).again);
  if (root_cause.has_value()) {
    *order->mutable_root_cause() = *root_cause;
    order->mutable_root_cause()->set_unix_ms(context_.config.unix_ms_at_zero +
                                             context_.now.micros() / 1000);
    order->set_unrelated(IsDecisive(*root_cause));
  }
  order->set_at_us(context_.now.micros());
  out_.Commit(std::move(record));
  CADRE_CHECK(state_.phase() == v1::STOPPING, "job ", name_);
  out_.Note(absl::StrCat(first ? "stopping generation " : "the cause of stopping generation ",
                         state_.generation.number(), first ? ": " : " is: ", reason));
  MarkDirty(true);
  if (!first) return;
  volatile_.ordered_at = context_.clock.now();
  volatile_.suspects.diagnosis.reset();
  volatile_.suspects.probe.reset();
  volatile_.suspects.standstill.reset();
  volatile_.suspects.given_up.reset();
  for (v1::Failure& victim : std::exchange(volatile_.suspects.victims, {}).failures) {
    if (state::IsOver(state_.generation.worker(victim.rank()))) continue;
    victim.set_collateral(root_cause.has_value() && !IsDecisive(*root_cause));
    out_.Commit(WorkerEnded(state_, victim.rank(), victim, context_.now));
  }
  volatile_.progress.EndGeneration(state_);
  volatile_.store.End(
      absl::StrCat("generation ", state_.generation.number(), " is being stopped: ", reason));
  SendStops(state_, /*at_once=*/false, out_);
}

void Job::RestartOrEnd() {
  CADRE_CHECK(state_.phase() == v1::STOPPING && state_.generation.nodes_busy == 0, "job ", name_);
  const v1::Failure* failure = state_.generation.root_cause();
  const std::optional<v1::Failure> root_cause =
      failure == nullptr ? std::nullopt : std::make_optional(*failure);
  const GenerationRun run = GenerationRunOf(state_, volatile_.progress, context_.now);
  const bool made_progress = MadeProgress(run, state_.policy);
  const RestartDecision decision = DecideNext(view(), root_cause, made_progress);
  if (!decision.again) {
    // DecideRestart() goes on if nothing failed.
    CADRE_CHECK(root_cause.has_value(), "job ", name_);
    const std::string message = decision.reason.empty()
                                    ? root_cause->message()
                                    : absl::StrCat(root_cause->message(), "; ", decision.reason);
    return End(root_cause->cause() == v1::CANCELLED ? v1::CANCELLED_PHASE : v1::FAILED,
               ExitStatusFor(*root_cause), message, root_cause);
  }
  v1::Record record;
  v1::GatheringBegan* began = record.mutable_gathering_began();
  began->set_restart_count(state_.saved.restarts().all() + 1);
  began->set_not_before_us((context_.now + decision.delay).micros());
  began->set_at_us(context_.now.micros());
  began->set_counted(decision.counted);
  began->set_got_on(made_progress);
  began->set_step(run.step.value_or(0));
  if (root_cause.has_value() && root_cause->cause() == v1::REQUEUED) {
    return ReturnToQueue(std::move(record));
  }
  out_.Commit(std::move(record));
  CADRE_CHECK(state_.phase() == v1::GATHERING, "job ", name_);
  out_.Note(absl::StrCat("gathering again: ", decision.reason));
  MarkDirty(true);
}

void Job::ReturnToQueue(v1::Record record) {
  const auto& allocations = context_.state.cluster.allocations;
  const bool has_none = std::none_of(allocations.begin(), allocations.end(), [&](const auto& one) {
    return one.second.part().job() == name_;
  });
  record.mutable_gathering_began()->set_requeued(true);
  record.mutable_gathering_began()->set_queued(has_none);
  out_.Commit(std::move(record));
  out_.Note(has_none ? "is in the queue again"
                     : "gives its nodes back, and is in the queue again then");
  cluster_events_.gives_back.push_back(name_);
  MarkDirty(true);
}

void Job::Requeue(const std::string& reason) {
  if (state::HasEnded(state_.phase()) || state_.phase() == v1::QUEUED ||
      state_.saved.submission().requeued() ||
      (state_.phase() == v1::STOPPING && HasDecisiveCause(state_.generation))) {
    return;
  }
  const std::string why = OneLine(reason, state::kMaxNodeTextBytes);
  const std::string text = absl::StrCat("put back into the queue", why.empty() ? "" : ": ", why);
  if (state_.phase() != v1::GATHERING) {
    return OrderStop(text, PlainFailure(v1::REQUEUED, "", state_.generation.number(), text));
  }
  v1::Record record;
  v1::GatheringBegan* began = record.mutable_gathering_began();
  // The steps of a batch job end with this, as with any restart.
  began->set_restart_count(state_.saved.restarts().all() + 1);
  began->set_at_us(context_.now.micros());
  ReturnToQueue(std::move(record));
}

void Job::Signal(int signal) {
  if (state_.phase() != v1::RUNNING) return;
  v1::ServerMessage message = out_.Message();
  message.mutable_signal()->set_signal(signal);
  for (const saved::Member& member : state_.generation.saved.members()) {
    if (!member.lost()) out_.SendTo(member.node(), message);
  }
}

void Job::Warn() {
  volatile_.warned = state_.generation.number();
  const int signal = state_.policy.warning_signal;
  out_.Note(absl::StrCat("is sent signal ", signal, ", as its time ends in ",
                         ShortDuration(TotalDeadline(view()) - context_.clock.now())));
  if (state_.saved.spec().has_batch() && !state_.saved.spec().batch().warn_script()) {
    cluster_events_.signals_steps.emplace_back(name_, signal);
  } else {
    Signal(signal);
  }
}

void Job::End(v1::JobPhase outcome, int exit_status, const std::string& message,
              const std::optional<v1::Failure>& root_cause) {
  v1::Record record;
  *record.mutable_job_ended()->mutable_verdict() =
      MakeVerdict(name_, state_, outcome, exit_status, message, root_cause);
  record.mutable_job_ended()->set_at_us(context_.now.micros());
  out_.Commit(std::move(record));
  out_.Note(absl::StrCat("ended, ", rpc::PhaseName(outcome), message.empty() ? "" : ": ", message));
  volatile_.ended_here = true;
  volatile_.store.End(absl::StrCat("job ", name_, " has ended"));
  volatile_.suspects.diagnosis.reset();
  volatile_.suspects.probe.reset();
  volatile_.suspects.standstill.reset();
  volatile_.suspects.given_up.reset();
  volatile_.suspects.victims = {};
  volatile_.progress.EndGeneration(state_);
  volatile_.usage.End();
  volatile_.connections.BeginLeaving();
  const v1::ServerMessage finished = FinishedMessage(name_, view());
  out_.SendToAll(finished);
  MarkDirty(true);
}

void Job::Cancel(const std::string& reason, int signal, v1::FailureCause cause, bool at_once) {
  // In a job that gathers again the only decisive cause of its last generation is a requeue: any
  // other would have ended the job.
  if (state::HasEnded(state_.phase())) return;
  const v1::Failure* root = state_.generation.root_cause();
  if (HasDecisiveCause(state_.generation) && root->cause() != v1::REQUEUED) {
    if (at_once && state_.phase() == v1::STOPPING) SendStops(state_, at_once, out_);
    return;
  }
  const bool preempted = cause == v1::PREEMPTED;
  const std::string why = OneLine(reason, state::kMaxNodeTextBytes);
  const std::string text =
      absl::StrCat(preempted ? "preempted" : "cancelled", why.empty() ? "" : ": ", why);
  // That a job was cancelled is told by the verdict's outcome; for a preempted job the outcome is
  // FAILED.
  v1::Failure failure = PlainFailure(cause, "", state_.generation.number(), preempted ? text : why);
  if (!preempted && signal > 0 && signal < NSIG) failure.mutable_exit()->set_signal(signal);
  if (state_.phase() == v1::RUNNING || state_.phase() == v1::STOPPING) {
    OrderStop(text, failure);
    if (at_once) SendStops(state_, at_once, out_);
    return;
  }
  End(preempted ? v1::FAILED : v1::CANCELLED_PHASE, ExitStatusFor(failure), failure.message(),
      failure);
}

namespace {

// Until then nothing fails because nodes do not join or start: they have a lease to find a server
// that was restarted, or could send nothing for a while.
MonoTime ReconnectGraceEnd(const JobView& view) {
  return view.context.clock.reachable_since() + view.context.config.lease;
}

bool IsBeforeReachable(MonoTime moment, const JobView& view) {
  return moment < view.context.clock.reachable_since();
}

}  // namespace

MonoTime TotalDeadline(const JobView& view) {
  const saved::JobTimes& times = view.job.saved.times();
  const int64_t from = times.limit_from_us() == 0 ? times.created_us() : times.limit_from_us();
  return std::min(view.context.clock.FromRecord(from) + view.job.policy.total_timeout,
                  QueueDeadline(view));
}

MonoTime WarningDeadline(const JobView& view) {
  const MonoTime total = TotalDeadline(view);
  const bool warns = view.job.policy.warning > absl::ZeroDuration() && total != MonoTime::Never() &&
                     view.volatile_state.warned != view.job.generation.number() &&
                     AllStarted(view.job.generation);
  return warns ? total + -view.job.policy.warning : MonoTime::Never();
}

MonoTime StartDeadline(const JobView& view) {
  const MonoTime ordered = view.volatile_state.ordered_at;
  const MonoTime until = ordered + view.job.policy.start_timeout;
  return IsBeforeReachable(ordered, view) ? std::max(until, ReconnectGraceEnd(view)) : until;
}

MonoTime StopDeadline(const JobView& view) {
  return view.volatile_state.ordered_at + view.job.policy.stop_grace +
         view.context.config.stop_margin;
}

MonoTime AbsenceDeadline(const JobView& view) {
  const Suspects& suspects = view.volatile_state.suspects;
  const bool asks = AllStarted(view.job.generation) && !suspects.diagnosis.has_value() &&
                    suspects.asked_for_absent != view.job.generation.number() &&
                    AwaitsProgressAfterRejoin(view);
  return asks ? StartDeadline(view) : MonoTime::Never();
}

MonoTime PhaseDeadline(const JobView& view) {
  const Suspects& suspects = view.volatile_state.suspects;
  switch (view.job.phase()) {
    case v1::QUEUED:
      return QueueDeadline(view);
    case v1::GATHERING:
      if (view.job.saved.submission().requeued()) return TotalDeadline(view);
      return std::min(
          TotalDeadline(view),
          DecideFormation(GatheringOf(view), view.job.policy, view.context.clock.now()).again_at);
    case v1::RUNNING:
      return std::min(
          {TotalDeadline(view), WarningDeadline(view),
           AllStarted(view.job.generation) ? MonoTime::Never() : StartDeadline(view),
           AbsenceDeadline(view),
           suspects.diagnosis.has_value() ? suspects.diagnosis->deadline : MonoTime::Never(),
           suspects.probe.has_value() ? suspects.probe->deadline : MonoTime::Never(),
           suspects.given_up.has_value() ? suspects.given_up->fails_at : MonoTime::Never(),
           suspects.victims.failures.empty() || suspects.diagnosis.has_value()
               ? MonoTime::Never()
               : suspects.victims.fails_at});
    case v1::STOPPING:
      return HasDecisiveCause(view.job.generation)
                 ? StopDeadline(view)
                 : std::min(StopDeadline(view), TotalDeadline(view));
    default:
      return MonoTime::Never();
  }
}

bool AllStarted(const state::Generation& generation) {
  return generation.started == generation.world_size();
}

bool HasDecisiveCause(const state::Generation& generation) {
  return generation.root_cause() != nullptr && IsDecisive(*generation.root_cause());
}

bool AwaitsProgressAfterRejoin(const JobView& view) {
  const auto& generations = view.job.saved.timeline().generations();
  return !generations.empty() && generations.rbegin()->rejoined() > 0 &&
         view.volatile_state.progress.FirstProgressUs(view.job.generation.number()) == 0;
}

bool CanGrow(const JobView& view) {
  return view.job.generation.succeeded == 0 &&
         view.job.policy.SizeFor(view.volatile_state.connections.ready()) >
             view.job.generation.nodes();
}

bool MayAskForCheckpoint(const state::Job& job) {
  // Workers that can rejoin lose nothing by a stop, and are not asked to leave.
  return job.policy.scale_up == v1::ElasticPolicy::AT_CHECKPOINT && !job.policy.in_place &&
         AllStarted(job.generation) && job.generation.nodes() < job.policy.target();
}

bool WantsCheckpoint(const JobView& view) {
  return view.job.phase() == v1::RUNNING && MayAskForCheckpoint(view.job) && CanGrow(view);
}

bool KnowsExpectedNodes(const state::Job& job) {
  return !job.saved.expected_nodes().empty() &&
         (job.user().empty() || job.saved.generations() == 0);
}

bool ClusterOwesNodes(const JobView& view) {
  const state::Job& job = view.job;
  if (job.user().empty() || job.saved.generations() == 0) return false;
  // A job that has declared a node unfit is owed nothing: it is never placed there again, and
  // enough other nodes may never come.
  const auto& avoided = job.saved.submission().avoided();
  if (std::any_of(avoided.begin(), avoided.end(),
                  [](const v1::AvoidedNode& node) { return node.unfit(); })) {
    return false;
  }
  const auto& allocations = view.context.state.cluster.allocations;
  const auto has = std::count_if(allocations.begin(), allocations.end(), [&](const auto& one) {
    return one.second.part().job() == job.name() && !one.second.taken_back();
  });
  return job.policy.SizeFor(static_cast<uint32_t>(has)) == 0;
}

Gathering GatheringOf(const JobView& view) {
  const state::Job& job = view.job;
  const NodeConnections& connections = view.volatile_state.connections;
  const step::LeaseClock& clock = view.context.clock;
  Gathering gathering;
  gathering.present = connections.ready();
  // Other nodes only replace those that are lost.
  if (job.policy.scale_up == v1::ElasticPolicy::NEVER && job.generation.nodes() > 0) {
    gathering.most = job.generation.nodes();
  }
  gathering.since = clock.FromRecord(job.saved.times().gathering_us());
  gathering.granted = view.volatile_state.granted_at;
  if (IsBeforeReachable(gathering.since, view)) {
    gathering.since = std::max(gathering.since, ReconnectGraceEnd(view) + -job.policy.join_timeout);
  }
  gathering.not_before = clock.FromRecord(job.saved.times().not_before_us());
  // Earlier members have the settle window to reconnect to a restarted server.
  gathering.last_join =
      std::max(clock.FromRecord(job.saved.times().last_join_us()), clock.reachable_since());
  for (const saved::Member& member : job.generation.saved.members())
    gathering.survivors += !member.lost();
  // Searched one by one only if all may be there, so that gathering of a large job takes linear
  // time.
  gathering.survivors_in =
      connections.ready() >= gathering.survivors &&
      std::all_of(
          job.generation.saved.members().begin(), job.generation.saved.members().end(),
          [&](const saved::Member& m) { return m.lost() || connections.IsReady(m.node()); });
  if (KnowsExpectedNodes(job) &&
      connections.ready() >= static_cast<size_t>(job.saved.expected_nodes_size())) {
    std::set<std::string> here;
    for (const std::string& name : ReadyNodes(view)) {
      here.insert(name);
      here.insert(job.nodes.at(name).node().host());
    }
    gathering.all_expected =
        std::all_of(job.saved.expected_nodes().begin(), job.saved.expected_nodes().end(),
                    [&here](const std::string& name) { return here.count(name) != 0; });
  }
  return gathering;
}

std::vector<std::string> ReadyNodes(const JobView& view) {
  std::vector<std::string> ready;
  for (const auto& [name, node] : view.job.nodes) {
    if (view.volatile_state.connections.IsReady(name)) ready.push_back(name);
  }
  return ready;
}

}  // namespace cadre::job
