// Generations form, run, stop and end.
#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/job/ranks.h"
#include "rendezvous/job/report.h"
#include "rendezvous/job/restart.h"
#include "rendezvous/job/timeline.h"
#include "rendezvous/state/policy.h"

namespace cadre {
namespace {

MonoTime At(int64_t us) { return MonoTime::FromMicros(us); }

MonoTime TotalDeadline(const JobState& job) {
  return At(job.created_us) + job.policy.total_timeout;
}

MonoTime StartDeadline(const JobState& job, const Live& live) {
  return std::max(
      std::max(At(job.generation.formed_us), live.orders_count_from) + job.policy.start_timeout,
      live.patient_until);
}

bool AllStarted(const GenerationState& generation) {
  return generation.started == generation.workers.size();
}

bool IsSettled(const std::optional<v1::Failure>& root_cause) {
  return root_cause.has_value() && HasLastWord(*root_cause);
}

// Once workers have finished their work, more of them would only do it again.
bool CanGrow(const JobState& job, const Live& live) {
  return job.generation.succeeded == 0 &&
         job.policy.SizeFor(live.ready) > job.generation.members.size();
}

v1::Failure TotalTimeout(const JobState& job) {
  return PlainFailure(v1::TOTAL_TIMEOUT, "", job.generation.number,
                      absl::StrCat("the job took longer than timeouts.total, ",
                                   ShortDuration(job.policy.total_timeout)));
}

v1::Failure StartTimeout(const JobState& job) {
  const GenerationState& generation = job.generation;
  const auto first =
      std::find(generation.workers.begin(), generation.workers.end(), WorkerPhase::kAssigned);
  const uint32_t rank = first - generation.workers.begin();
  auto member = generation.members.begin();
  while (member->first_rank + member->slots <= rank) ++member;
  v1::Failure failure = PlainFailure(
      v1::START_TIMEOUT, member->node, generation.number,
      absl::StrCat(RanksNotStarted(generation), " did not start within ",
                   ShortDuration(job.policy.start_timeout), " in generation ", generation.number));
  failure.set_rank(rank);
  failure.set_local_rank(rank - member->first_rank);
  return failure;
}

}  // namespace

bool Core::Impl::Advance(const std::string& name, JobState* job, Live* live) {
  switch (job->phase) {
    case v1::GATHERING:
      return AdvanceGathering(name, job, live);
    case v1::RUNNING:
      return AdvanceRunning(name, job, live);
    case v1::STOPPING:
      return AdvanceStopping(name, job, live);
    default:
      return false;
  }
}

bool Core::Impl::AdvanceGathering(const std::string& name, JobState* job, Live* live) {
  if (clock >= TotalDeadline(*job)) {
    const v1::Failure failure = TotalTimeout(*job);
    EndJob(name, job, v1::FAILED, ExitStatusFor(failure), failure.message(), failure);
    return true;
  }
  const FormationDecision decision = DecideFormation(GatheringOf(*job, *live), job->policy, clock);
  switch (decision.kind) {
    case FormationDecision::kWait:
      return false;
    case FormationDecision::kForm:
      Form(name, job, *live, decision.size, decision.reason);
      return true;
    case FormationDecision::kGiveUp:
      break;
  }
  const v1::Failure failure = PlainFailure(v1::JOIN_TIMEOUT, "", job->generation.number,
                                           JoinTimeoutText(*job, ReadyNodes(*job, *live)));
  EndJob(name, job, v1::FAILED, ExitStatusFor(failure), failure.message(), failure);
  return true;
}

bool Core::Impl::AdvanceRunning(const std::string& name, JobState* job, Live* live) {
  const GenerationState& generation = job->generation;
  if (generation.succeeded == generation.workers.size()) {
    EndJob(name, job, v1::SUCCEEDED, 0,
           generation.workers.size() == 1
               ? "the worker succeeded"
               : absl::StrCat("all ", generation.workers.size(), " workers succeeded"),
           std::nullopt);
    return true;
  }
  if (clock >= TotalDeadline(*job)) {
    const v1::Failure failure = TotalTimeout(*job);
    OrderStop(name, job, failure.message(), failure);
    return true;
  }
  if (!AllStarted(generation) && clock >= StartDeadline(*job, *live)) {
    const v1::Failure failure = StartTimeout(*job);
    OrderStop(name, job, failure.message(), failure);
    return true;
  }
  if (AbsenceDeadline(*job, *live) <= clock) {
    BeginInquiry(name, "", *job, live);
    live->hang->for_absent = true;
    live->asked_for_absent = generation.number;
  }
  if (AdvanceInquiry(name, job, live) || AdvanceGivenUp(name, job, live)) return true;
  if (job->policy.scale_up == v1::ElasticPolicy::IMMEDIATELY && CanGrow(*job, *live)) {
    OrderStop(name, job,
              absl::StrCat("scale up to ", Count(job->policy.SizeFor(live->ready), "node")),
              std::nullopt);
    return true;
  }
  return false;
}

bool Core::Impl::WantsCheckpoint(const JobState& job, const Live& live) {
  // What can rejoin has nothing to lose, and is not asked to leave.
  return job.phase == v1::RUNNING && job.policy.scale_up == v1::ElasticPolicy::AT_CHECKPOINT &&
         !job.policy.in_place && AllStarted(job.generation) && CanGrow(job, live);
}

bool Core::Impl::AdvanceStopping(const std::string& name, JobState* job, Live* live) {
  if (clock >= TotalDeadline(*job) && !IsSettled(job->generation.root_cause)) {
    const v1::Failure failure = TotalTimeout(*job);
    OrderStop(name, job, failure.message(), failure);
  }
  if (job->generation.nodes_busy == 0) {
    Conclude(name, job);
    return true;
  }
  if (clock < StopDeadline(*job, *live)) return false;
  std::vector<std::string> silent;
  for (const MemberState& member : job->generation.members) {
    if (!member.lost && !member.cleared && live->links.count(member.node) != 0) {
      silent.push_back(member.node);
    }
  }
  for (const std::string& node : silent) {
    RemoveNode(name, node, v1::NODE_LOST, "it did not stop its workers in time",
               absl::DeadlineExceededError("this node did not stop its workers in time"));
  }
  return !silent.empty();
}

bool Core::Impl::IsReady(const Live& live, const std::string& node) const {
  const auto link = live.links.find(node);
  return link != live.links.end() && link->second.stream.has_value() &&
         !link->second.old_generation.exists();
}

Gathering Core::Impl::GatheringOf(const JobState& job, const Live& live) const {
  Gathering gathering;
  gathering.present = live.ready;
  gathering.since = std::max(At(job.gathering_us), live.patient_until + -job.policy.join_timeout);
  gathering.not_before = At(job.not_before_us);
  // Those who were in have the window to come back to a server that began anew.
  gathering.last_join = std::max(At(job.last_join_us), live.patient_until + -config.lease);
  for (const MemberState& member : job.generation.members) gathering.survivors += !member.lost;
  // Looked for one by one only when they can be complete: a large job gathers in linear time.
  gathering.survivors_in =
      live.ready >= gathering.survivors &&
      std::all_of(job.generation.members.begin(), job.generation.members.end(),
                  [&](const MemberState& m) { return m.lost || IsReady(live, m.node); });
  if (!job.expected_nodes.empty() && live.ready >= job.expected_nodes.size()) {
    std::set<std::string> here;
    for (const auto& [name, link] : live.links) {
      if (!IsReady(live, name)) continue;
      here.insert(name);
      here.insert(job.nodes.at(name).host);
    }
    gathering.all_expected =
        std::all_of(job.expected_nodes.begin(), job.expected_nodes.end(),
                    [&here](const std::string& name) { return here.count(name) != 0; });
  }
  return gathering;
}

std::vector<std::string> Core::Impl::ReadyNodes(const JobState& job, const Live& live) const {
  std::vector<std::string> ready;
  for (const auto& [name, node] : job.nodes) {
    if (IsReady(live, name)) ready.push_back(name);
  }
  return ready;
}

void Core::Impl::Form(const std::string& name, JobState* job, const Live& live, uint32_t size,
                      const std::string& reason) {
  std::vector<std::string> previous;
  for (const MemberState& member : job->generation.members) {
    previous.push_back(member.lost ? "" : member.node);
  }
  // Those who took part before come first, then whoever came first.
  std::set<std::string> survivors(previous.begin(), previous.end());
  std::vector<std::pair<bool, RankCandidate>> chosen;
  for (const std::string& node_name : ReadyNodes(*job, live)) {
    const NodeState& node = job->nodes.at(node_name);
    chosen.push_back({survivors.count(node_name) == 0,
                      {node_name, node.host, node.slots, node.wanted_node_rank, node.admission}});
  }
  std::sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.first, a.second.admission) <
           std::make_pair(b.first, b.second.admission);
  });
  std::vector<RankCandidate> candidates;
  for (size_t i = 0; i < size; ++i) candidates.push_back(std::move(chosen[i].second));
  RankAssignment ranks = AssignRanks(std::move(candidates), previous);
  for (std::string& note : ranks.notes) Note(name, std::move(note));

  v1::Record record = NewRecord(name);
  v1::GenerationFormed* formed = record.mutable_generation_formed();
  formed->set_generation(job->generation.number + 1);
  for (v1::Member& member : ranks.members) *formed->add_members() = std::move(member);
  const NodeState& master = job->nodes.at(formed->members(0).node());
  formed->set_master_addr(master.master_addr.empty() ? master.address : master.master_addr);
  formed->set_master_port(master.master_port == 0 ? master.held_port : master.master_port);
  formed->set_restart_count(job->restart_count);
  formed->set_at_us(now.micros());
  Commit(std::move(record));
  Note(name, absl::StrCat("generation ", job->generation.number, " forms with ",
                          Count(size, "node"), ": ", reason));
  lives[name].orders_count_from = now;
  for (size_t rank = 0; rank < job->generation.members.size(); ++rank) {
    v1::ServerMessage message = NewMessage(name, job->generation.number);
    *message.mutable_assign() = MakeAssign(*job, rank);
    SendToNode(name, job->generation.members[rank].node, std::move(message));
  }
  Touch(name, true);
}

void Core::Impl::OrderStop(const std::string& name, JobState* job, const std::string& reason,
                           const std::optional<v1::Failure>& root_cause) {
  const bool first = job->phase == v1::RUNNING;
  v1::Record record = NewRecord(name);
  v1::StopOrdered* order = record.mutable_stop_ordered();
  order->set_generation(job->generation.number);
  order->set_reason(reason);
  order->set_rejoin(first && job->policy.in_place && DecideNext(*job, root_cause).again);
  if (root_cause.has_value()) {
    *order->mutable_root_cause() = *root_cause;
    order->mutable_root_cause()->set_unix_ms(config.unix_ms_at_zero + now.micros() / 1000);
  }
  order->set_at_us(now.micros());
  Commit(std::move(record));
  Note(name, absl::StrCat(first ? "stopping generation " : "the cause of stopping generation ",
                          job->generation.number, first ? ": " : " is: ", reason));
  Touch(name, true);
  if (!first) return;
  lives[name].orders_count_from = now;
  lives[name].hang.reset();
  lives[name].given_up.reset();
  lives[name].progress.EndGeneration(*job);
  AbortWaiters(name,
               absl::StrCat("generation ", job->generation.number, " is being stopped: ", reason));
  for (const MemberState& member : job->generation.members) {
    if (member.lost) continue;
    v1::ServerMessage message = NewMessage(name, job->generation.number);
    *message.mutable_stop() = MakeStop(*job, member.node);
    SendToNode(name, member.node, std::move(message));
  }
}

RestartDecision Core::Impl::DecideNext(const JobState& job,
                                       const std::optional<v1::Failure>& root_cause) const {
  const GenerationState& generation = job.generation;
  const uint32_t survivors = std::count_if(generation.members.begin(), generation.members.end(),
                                           [](const MemberState& member) { return !member.lost; });
  const MonoTime end = generation.stopping_us == 0 ? now : At(generation.stopping_us);
  return DecideRestart(root_cause, job.policy, job.counted_restarts_us, survivors, now,
                       end - At(generation.formed_us), !job.user.empty());
}

void Core::Impl::Conclude(const std::string& name, JobState* job) {
  const std::optional<v1::Failure> root_cause = job->generation.root_cause;
  const RestartDecision decision = DecideNext(*job, root_cause);
  if (!decision.again) {
    const std::string message = decision.reason.empty()
                                    ? root_cause->message()
                                    : absl::StrCat(root_cause->message(), "; ", decision.reason);
    return EndJob(name, job,
                  root_cause->cause() == v1::CANCELLED ? v1::CANCELLED_PHASE : v1::FAILED,
                  ExitStatusFor(*root_cause), message, root_cause);
  }
  v1::Record record = NewRecord(name);
  v1::GatheringBegan* began = record.mutable_gathering_began();
  began->set_restart_count(job->restart_count + 1);
  began->set_not_before_us((now + decision.delay).micros());
  began->set_at_us(now.micros());
  began->set_counted(decision.counted);
  Commit(std::move(record));
  Note(name, absl::StrCat("gathering again: ", decision.reason));
  Touch(name, true);
}

v1::ServerMessage Core::Impl::FinishedMessage(const std::string& name, const JobState& job) {
  v1::ServerMessage message = NewMessage(name, job.generation.number);
  *message.mutable_finished()->mutable_verdict() = *job.verdict;
  *message.mutable_finished()->mutable_timeline() = MakeTimeline(name, job, lives[name].progress);
  return message;
}

void Core::Impl::EndJob(const std::string& name, JobState* job, v1::JobPhase outcome,
                        int exit_status, const std::string& message,
                        const std::optional<v1::Failure>& root_cause) {
  v1::Record record = NewRecord(name);
  *record.mutable_job_ended()->mutable_verdict() =
      MakeVerdict(name, *job, outcome, exit_status, message, root_cause);
  record.mutable_job_ended()->set_at_us(now.micros());
  Commit(std::move(record));
  Note(name, absl::StrCat("ended, ", v1::JobPhase_Name(outcome), ": ", message));
  if (!job->user.empty()) cluster_changed = true;
  AbortWaiters(name, absl::StrCat("job ", name, " has ended"));
  Live& live = lives[name];
  live.hang.reset();
  live.given_up.reset();
  live.progress.EndGeneration(*job);
  const v1::ServerMessage finished = FinishedMessage(name, *job);
  std::vector<std::string> gone;
  for (auto& [node, link] : live.links) {
    link.last_heard = now;
    if (link.stream.has_value()) {
      Send(*link.stream, finished);
    } else {
      gone.push_back(node);
    }
  }
  for (const std::string& node : gone) EraseLink(name, &live, node);
  Touch(name, true);
}

void Core::Impl::CancelJob(const std::string& name, const std::string& reason, int signal,
                           v1::FailureCause cause) {
  JobState* job = FindJob(name);
  if (job == nullptr || HasEnded(job->phase) || IsSettled(job->generation.root_cause)) {
    // The root cause of a generation that is over settles nothing for a job that gathers again; it
    // would have ended the job.
    return;
  }
  const bool preempted = cause == v1::PREEMPTED;
  const char* what = preempted ? "preempted" : "cancelled";
  v1::Failure failure = PlainFailure(
      cause, "", job->generation.number,
      reason.empty() ? what : absl::StrCat(what, ": ", OneLine(reason, kMaxNodeTextBytes)));
  if (!preempted && signal > 0 && signal < NSIG) failure.mutable_exit()->set_signal(signal);
  if (job->phase == v1::RUNNING || job->phase == v1::STOPPING)
    return OrderStop(name, job, failure.message(), failure);
  EndJob(name, job, preempted ? v1::FAILED : v1::CANCELLED_PHASE, ExitStatusFor(failure),
         failure.message(), failure);
}

MonoTime Core::Impl::AbsenceDeadline(const JobState& job, const Live& live) const {
  const bool asks = AllStarted(job.generation) && !live.hang.has_value() &&
                    live.asked_for_absent != job.generation.number && AwaitsOthers(job, live);
  return asks ? StartDeadline(job, live) : MonoTime::Never();
}

MonoTime Core::Impl::StopDeadline(const JobState& job, const Live& live) const {
  return std::max(At(job.generation.stopping_us), live.orders_count_from) + job.policy.stop_grace +
         config.stop_margin;
}

MonoTime Core::Impl::PhaseDeadline(const JobState& job, const Live& live) const {
  switch (job.phase) {
    case v1::GATHERING:
      return std::min(TotalDeadline(job),
                      DecideFormation(GatheringOf(job, live), job.policy, clock).again_at);
    case v1::RUNNING:
      return std::min({TotalDeadline(job),
                       AllStarted(job.generation) ? MonoTime::Never() : StartDeadline(job, live),
                       AbsenceDeadline(job, live),
                       live.hang.has_value() ? live.hang->deadline : MonoTime::Never(),
                       live.given_up.has_value() ? live.believed_at : MonoTime::Never()});
    case v1::STOPPING:
      return IsSettled(job.generation.root_cause)
                 ? StopDeadline(job, live)
                 : std::min(StopDeadline(job, live), TotalDeadline(job));
    default:
      return MonoTime::Never();
  }
}

std::string Core::Impl::WaitingFor(const JobState& job, const Live& live, MonoTime at) const {
  const auto left = [this, at](MonoTime until) {
    return can_save ? absl::StrCat(", ", ShortDuration(until - at), " left")
                    : std::string("; the server cannot save its state at present");
  };
  const GenerationState& generation = job.generation;
  switch (job.phase) {
    case v1::QUEUED: {
      const auto found = queue.find(job.spec.name());
      if (found == queue.end()) return "the agents of the cluster's nodes to come back";
      const MonoTime until = found->second.until;
      return absl::StrCat(
          found->second.reason,
          until == MonoTime::Never()
              ? ""
              : absl::StrCat("; within ", ShortDuration(until - at), " at the latest"));
    }
    case v1::GATHERING: {
      const FormationDecision decision = DecideFormation(GatheringOf(job, live), job.policy, at);
      std::string missing = LaunchersAwaited(job);
      if (missing.empty() || at < MonoTime::FromMicros(job.not_before_us)) {
        missing = MissingText(job, decision, ReadyNodes(job, live));
      }
      return absl::StrCat(missing,
                          decision.again_at == MonoTime::Never() ? "" : left(decision.again_at),
                          live.refusal.empty() ? "" : "; ", live.refusal);
    }
    case v1::RUNNING:
      if (AllStarted(generation)) return "";
      return absl::StrCat(Count(generation.workers.size() - generation.started, "worker"),
                          " to start (", RanksNotStarted(generation), ")",
                          left(StartDeadline(job, live)));
    case v1::STOPPING: {
      // Until the grace is over those that go on may still come.
      const MonoTime come_by = StopDeadline(job, live) + -config.stop_margin;
      const bool may_come = generation.rejoin && at < come_by;
      return absl::StrCat("workers on ", NodesNotStopped(generation),
                          may_come ? " to stop or to rejoin" : " to stop",
                          left(may_come ? come_by : StopDeadline(job, live)));
    }
    default:
      return "";
  }
}

}  // namespace cadre
