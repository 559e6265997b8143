// Methods of Job: generations form, run, stop and end.
#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/job/job.h"
#include "rendezvous/job/progress_log.h"
#include "rendezvous/job/ranks.h"
#include "rendezvous/job/report.h"
#include "rendezvous/job/restart.h"
#include "rendezvous/job/status.h"
#include "rendezvous/state/policy.h"
#include "rpc/job_phase.h"

namespace cadre::job {
namespace {

v1::Failure TotalTimeout(const state::Job& job) {
  return PlainFailure(v1::TOTAL_TIMEOUT, "", job.generation.number(),
                      absl::StrCat("the job took longer than timeouts.total, ",
                                   ShortDuration(job.policy.total_timeout)));
}

// `at_once`: who has not stopped yet gets no more grace.
void SendStops(const state::Job& job, bool at_once, Outbox& out) {
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

// By node rank; empty where the node is lost.
std::vector<std::string> NodesOfLastGeneration(const state::Job& job) {
  std::vector<std::string> nodes;
  for (const saved::Member& member : job.generation.saved.members()) {
    nodes.push_back(member.lost() ? "" : member.node());
  }
  return nodes;
}

// Those who took part before come first, then whoever came first.
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

// What ended was the cluster's node, as far as is known, and not the job's launcher alone.
bool IsLossOfNode(const state::Job& job, const v1::Failure& failure) {
  const auto& avoided = job.saved.submission().avoided();
  return failure.cause() == v1::NODE_LOST &&
         std::none_of(avoided.begin(), avoided.end(),
                      [&](const v1::AvoidedNode& node) { return node.node() == failure.node(); });
}

Course CourseOf(const state::Job& job, const ProgressLog& progress, MonoTime now) {
  const saved::Generation& generation = job.generation.saved;
  const int64_t stopped_us = generation.stop().ordered_us();
  const MonoTime end = stopped_us == 0 ? now : MonoTime::FromMicros(stopped_us);
  Course course;
  course.lasted = end - MonoTime::FromMicros(generation.formed_us());
  course.step = progress.StepOf(job);
  course.furthest_step = job.saved.restarts().furthest_step();
  course.start = course.lasted;
  const auto& generations = job.saved.timeline().generations();
  if (generations.empty() || generations.rbegin()->running_us() == 0) return course;
  const v1::GenerationTimeline& times = *generations.rbegin();  // its own
  const int64_t began_us = std::max(times.running_us() + times.imports_us(),
                                    progress.FirstProgressUs(times.generation()));
  course.start = absl::Microseconds(began_us - times.formed_us());
  return course;
}

// What would follow the current generation if this ended it.
RestartDecision DecideNext(const View& view, const std::optional<v1::Failure>& root_cause,
                           bool got_on) {
  const state::Job& job = view.job;
  const auto& members = job.generation.saved.members();
  const uint32_t survivors = std::count_if(
      members.begin(), members.end(), [](const saved::Member& member) { return !member.lost(); });
  const saved::Restarts& restarts = job.saved.restarts();
  OfCluster cluster;
  cluster.submitted = !job.user().empty();
  cluster.lost_node = root_cause.has_value() && IsLossOfNode(job, *root_cause);
  cluster.free_restarts = restarts.all() - restarts.counted();
  return DecideRestart(root_cause, job.policy,
                       {restarts.counted_us(), got_on ? 0 : restarts.in_vain()}, survivors,
                       view.context.now, cluster);
}

}  // namespace

bool Job::AdvancePhase() {
  switch (state_.phase()) {
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

bool Job::AdvanceGathering() {
  if (context_.clock.now() >= TotalDeadline(view())) {
    const v1::Failure failure = TotalTimeout(state_);
    End(v1::FAILED, ExitStatusFor(failure), failure.message(), failure);
    return true;
  }
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
  if (IsOwedNodes(view())) {
    if (!std::exchange(live_.gives_back, true)) for_cluster_.gives_back.push_back(name_);
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
    const v1::Failure failure = TotalTimeout(state_);
    OrderStop(failure.message(), failure);
    return true;
  }
  if (!AllStarted(generation) && now >= StartDeadline(view())) {
    const v1::Failure failure = StartTimeout(state_);
    OrderStop(failure.message(), failure);
    return true;
  }
  if (AbsenceDeadline(view()) <= now) {
    live_.suspicion.inquiry =
        Inquire(state_.generation, live_.connections, "", context_.clock.now(), &out_);
    live_.suspicion.inquiry->for_absent = true;
    live_.suspicion.asked_for_absent = generation.number();
  }
  if (AdvanceSuspicion()) return true;
  if (state_.policy.scale_up == v1::ElasticPolicy::IMMEDIATELY && CanGrow(view())) {
    const uint32_t size = state_.policy.SizeFor(live_.connections.ready());
    OrderStop(absl::StrCat("scale up to ", Count(size, "node")), std::nullopt);
    return true;
  }
  return false;
}

bool Job::AdvanceStopping() {
  if (context_.clock.now() >= TotalDeadline(view()) && !IsSettled(state_.generation)) {
    const v1::Failure failure = TotalTimeout(state_);
    OrderStop(failure.message(), failure);
  }
  if (state_.generation.nodes_busy == 0) {
    RestartOrEnd();
    return true;
  }
  if (context_.clock.now() < StopDeadline(view())) return false;
  std::vector<std::string> silent;
  for (const saved::Member& member : state_.generation.saved.members()) {
    if (!member.lost() && !member.cleared() && live_.connections.Find(member.node()) != nullptr) {
      silent.push_back(member.node());
    }
  }
  for (const std::string& node : silent) {
    RemoveNode(node, v1::NODE_LOST, v1::NodeRemoved::DID_NOT_STOP,
               "it did not stop its workers in time",
               absl::DeadlineExceededError("this node did not stop its workers in time"));
    for_cluster_.launchers_lost.emplace_back(name_, node);
  }
  return !silent.empty();
}

void Job::Form(const FormationDecision& decision) {
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
  out_.Note(absl::StrCat("generation ", state_.generation.number(), " forms with ",
                         Count(decision.size, "node"), ": ", decision.reason));
  const std::string differ = NodesDiffer(state_);
  if (!differ.empty()) out_.Note(differ);
  live_.ordered_at = context_.clock.now();
  const std::vector<RolePlace> roles = RolePlaces(state_);
  for (uint32_t rank = 0; rank < state_.generation.nodes(); ++rank) {
    v1::ServerMessage message = out_.Message();
    *message.mutable_assign() = MakeAssign(state_, rank);
    SetRole(roles, rank, message.mutable_assign());
    out_.SendTo(state_.generation.member(rank).node(), std::move(message));
  }
  Touch(true);
}

void Job::OrderStop(const std::string& reason, const std::optional<v1::Failure>& root_cause) {
  const bool first = state_.phase() == v1::RUNNING;
  v1::Record record;
  v1::StopOrdered* order = record.mutable_stop_ordered();
  order->set_generation(state_.generation.number());
  order->set_reason(reason);
  order->set_rejoin(first && state_.policy.in_place &&
                    DecideNext(view(), root_cause, /*got_on=*/false).again);
  if (root_cause.has_value()) {
    *order->mutable_root_cause() = *root_cause;
    order->mutable_root_cause()->set_unix_ms(context_.config.unix_ms_at_zero +
                                             context_.now.micros() / 1000);
    order->set_unrelated(HasLastWord(*root_cause));
  }
  order->set_at_us(context_.now.micros());
  out_.Commit(std::move(record));
  out_.Note(absl::StrCat(first ? "stopping generation " : "the cause of stopping generation ",
                         state_.generation.number(), first ? ": " : " is: ", reason));
  Touch(true);
  if (!first) return;
  live_.ordered_at = context_.clock.now();
  live_.suspicion.inquiry.reset();
  live_.suspicion.look.reset();
  live_.suspicion.standstill.reset();
  live_.suspicion.given_up.reset();
  for (v1::Failure& victim : std::exchange(live_.suspicion.victims, {}).failures) {
    if (state::IsOver(state_.generation.worker(victim.rank()))) continue;
    victim.set_collateral(root_cause.has_value() && !HasLastWord(*root_cause));
    out_.Commit(WorkerEnded(state_, victim.rank(), victim, context_.now));
  }
  live_.progress.EndGeneration(state_);
  live_.store.End(
      absl::StrCat("generation ", state_.generation.number(), " is being stopped: ", reason));
  SendStops(state_, /*at_once=*/false, out_);
}

void Job::RestartOrEnd() {
  const v1::Failure* failure = state_.generation.root_cause();
  const std::optional<v1::Failure> root_cause =
      failure == nullptr ? std::nullopt : std::make_optional(*failure);
  const Course course = CourseOf(state_, live_.progress, context_.now);
  const bool got_on = GotOn(course, state_.policy);
  const RestartDecision decision = DecideNext(view(), root_cause, got_on);
  if (!decision.again) {
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
  began->set_got_on(got_on);
  began->set_step(course.step.value_or(0));
  out_.Commit(std::move(record));
  out_.Note(absl::StrCat("gathering again: ", decision.reason));
  Touch(true);
}

void Job::End(v1::JobPhase outcome, int exit_status, const std::string& message,
              const std::optional<v1::Failure>& root_cause) {
  v1::Record record;
  *record.mutable_job_ended()->mutable_verdict() =
      MakeVerdict(name_, state_, outcome, exit_status, message, root_cause);
  record.mutable_job_ended()->set_at_us(context_.now.micros());
  out_.Commit(std::move(record));
  out_.Note(absl::StrCat("ended, ", rpc::PhaseName(outcome), message.empty() ? "" : ": ", message));
  live_.ended_here = true;
  live_.store.End(absl::StrCat("job ", name_, " has ended"));
  live_.suspicion.inquiry.reset();
  live_.suspicion.look.reset();
  live_.suspicion.standstill.reset();
  live_.suspicion.given_up.reset();
  live_.suspicion.victims = {};
  live_.progress.EndGeneration(state_);
  live_.usage.End();
  live_.connections.AwaitLeaving();
  const v1::ServerMessage finished = FinishedMessage(name_, view());
  out_.SendToAll(finished);
  Touch(true);
}

void Job::Cancel(const std::string& reason, int signal, v1::FailureCause cause, bool at_once) {
  // The root cause of a generation that is over settles nothing for a job that gathers again; it
  // would have ended the job.
  if (state::HasEnded(state_.phase())) return;
  if (IsSettled(state_.generation)) {
    if (at_once && state_.phase() == v1::STOPPING) SendStops(state_, at_once, out_);
    return;
  }
  const bool preempted = cause == v1::PREEMPTED;
  const std::string why = OneLine(reason, state::kMaxNodeTextBytes);
  const std::string text =
      absl::StrCat(preempted ? "preempted" : "cancelled", why.empty() ? "" : ": ", why);
  // That a job was cancelled is said by the verdict's outcome; of a preempted one it is FAILED.
  v1::Failure failure = PlainFailure(cause, "", state_.generation.number(), preempted ? text : why);
  if (!preempted && signal > 0 && signal < NSIG) failure.mutable_exit()->set_signal(signal);
  if (state_.phase() == v1::RUNNING || state_.phase() == v1::STOPPING) {
    return OrderStop(text, failure);
  }
  End(preempted ? v1::FAILED : v1::CANCELLED_PHASE, ExitStatusFor(failure), failure.message(),
      failure);
}

}  // namespace cadre::job
