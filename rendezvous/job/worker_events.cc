// Methods of Job: nodes tell of their workers: started, ended, gave up, hang, all gone.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "rendezvous/job/blame/culprit.h"
#include "rendezvous/job/blame/early_end.h"
#include "rendezvous/job/job.h"
#include "rendezvous/job/report.h"
#include "rendezvous/job/restart.h"
#include "rendezvous/state/limits.h"
#include "rpc/program_error.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

// How long the end of a rank may take to come after others lost it. Clean-up and the end of an
// interpreter with a device take a second or two.
constexpr absl::Duration kCauseLimit = absl::Seconds(3);

// The worker lost another one. Until kCauseLimit after the first such victim the lost one's own end
// may still come in and say why. False: the victim is known, and was told again on another
// connection.
bool AddVictim(v1::Failure failure, MonoTime now, Victims* victims) {
  for (const v1::Failure& known : victims->failures) {
    if (known.rank() == failure.rank()) return false;
  }
  if (victims->failures.empty()) victims->believed_at = now + kCauseLimit;
  if (victims->failures.size() > state::kMaxCollateral) {
    // Nobody is shown so many.
    failure.mutable_exit()->clear_last_lines();
    failure.mutable_exit()->clear_error_json();
  }
  victims->failures.push_back(std::move(failure));
  return true;
}

// At least so far apart are looks at a standstill.
constexpr absl::Duration kLookInterval = absl::Seconds(4);

// Why the victims failed, as long as no rank has failed for a reason of its own: a rank that ended
// in order too early, else the first whose wait had a timeout, since whoever came after that found
// its peers gone.
v1::Failure WhyLost(const state::Generation& generation, const std::vector<v1::Failure>& victims) {
  std::optional<v1::Failure> early = EarlyEnd(generation, victims);
  if (early.has_value()) return *std::move(early);
  const auto in_vain = std::find_if(victims.begin(), victims.end(), [](const v1::Failure& victim) {
    return rpc::WaitedInVain(victim.exit());
  });
  return in_vain == victims.end() ? victims.front() : *in_vain;
}

// Whether the worker's error file is from before that of the root cause, as far as seconds of two
// clocks can tell: torchrun goes by the same. What was counted as the root cause follows from this
// one then.
bool FailedBefore(const v1::Failure& failure, const state::Generation& generation) {
  const v1::Failure* root = generation.root_cause();
  if (root == nullptr || HasLastWord(*root) || root->rank() == failure.rank() ||
      rpc::LostItsPeer(failure.exit())) {
    return false;
  }
  const auto failed = rpc::ErrorFileSeconds(failure.exit());
  const auto root_failed = rpc::ErrorFileSeconds(root->exit());
  return failed.has_value() && root_failed.has_value() && *failed < *root_failed;
}

// A failure of a worker that says nothing of its end: "rank 3 (local rank 1) on n0 <what>".
v1::Failure FailureOfRank(const state::Job& job, const saved::Member& member, uint32_t local_rank,
                          v1::FailureCause cause, absl::string_view what) {
  const uint32_t rank = member.first_rank() + local_rank;
  v1::Failure failure =
      PlainFailure(cause, member.node(), job.generation.number(),
                   absl::StrCat(rpc::WorkerName(rank, local_rank, member.node()), " ", what));
  failure.set_rank(rank);
  failure.set_local_rank(local_rank);
  return failure;
}

std::string TextOfOldRemains(const v1::WorkerRemains& remains, const Connection& connection,
                             const std::string& node) {
  const uint32_t local_rank = remains.local_rank();
  const std::string who =
      connection.old_first_rank < 0
          ? absl::StrCat("a worker of generation ", connection.old_generation.number,
                         " (local rank ", local_rank, ") on ", node)
          : rpc::WorkerName(connection.old_first_rank + local_rank, local_rank, node);
  return OneLine(absl::StrCat(who, " ", rpc::WhatRemains(remains)), state::kMaxMessageBytes);
}

bool AreSame(const v1::ProgramImports& a, const v1::ProgramImports& b) {
  return a.worker_us() == b.worker_us() && a.template_us() == b.template_us() &&
         a.template_modules() == b.template_modules() &&
         a.left_to_workers_size() == b.left_to_workers_size();
}

}  // namespace

void Job::GenerationSaid(const std::string& node, const v1::NodeMessage& message) {
  const GenerationId named = NamedBy(message, context_);
  const uint64_t generation = named.number;
  const bool ours = named.server_id == context_.config.server_id;
  const Connection& connection = *live_.connections.Find(node);
  if (named.exists() && named == connection.old_generation) {
    if (message.has_node_stopped()) OldWorkersStopped(node, message.node_stopped());
    const v1::WorkerRemains& remains = message.worker_remains();
    if (message.has_worker_remains() &&
        remains.local_rank() < state_.nodes.at(node).node().slots()) {
      live_.connections.AddRemains(node, remains.local_rank(),
                                   TextOfOldRemains(remains, connection, node));
      for_cluster_.launchers_lost.emplace_back(name_, node);
      Touch(true);
    }
    return;
  }
  if (ours && generation > state_.generation.number()) {
    const StreamId stream = *live_.connections.StreamOf(node);
    StreamClosed(node);
    return out_.Close(stream, absl::InvalidArgumentError(absl::StrCat(
                                  "generation ", generation, " has not begun; the current one is ",
                                  state_.generation.number())));
  }
  const int node_rank = NodeRankOf(state_, node);
  if (!ours || generation < state_.generation.number() || node_rank < 0) {
    return out_.Note(absl::StrCat("ignored what node ", node, " says of generation ", generation));
  }
  const saved::Member& member = state_.generation.member(node_rank);
  if (message.has_worker_started()) return WorkerStarted(member, message.worker_started());
  if (message.has_worker_exited()) return WorkerExited(member, message.worker_exited());
  if (message.has_worker_gave_up()) return WorkerGaveUp(member, message.worker_gave_up());
  if (message.has_node_stopped()) return NodeStopped(member, message.node_stopped());
  if (message.has_worker_remains()) {
    const v1::WorkerRemains& remains = message.worker_remains();
    if (remains.local_rank() >= member.slots()) return;
    return NodeRemains(FailureOfRank(state_, member, remains.local_rank(), v1::NODE_LOST,
                                     rpc::WhatRemains(remains)));
  }
  if (state_.phase() != v1::RUNNING) return;
  if (message.has_imports()) {
    // Told again on each new connection: only news are saved.
    if (AreSame(member.imports(), message.imports())) return;
    v1::Record record;
    record.mutable_node_imported()->set_generation(state_.generation.number());
    record.mutable_node_imported()->set_node(member.node());
    *record.mutable_node_imported()->mutable_imports() = message.imports();
    out_.Commit(std::move(record));
    return Touch(false);
  }
  if (message.has_progress()) {
    const bool other_step = live_.progress.Note(state_, node, message.progress(), context_.now);
    if (other_step) live_.suspicion.standstill.reset();
    live_.push.progressed = true;
    return Touch(false);
  }
  EvidenceCame(member, message.evidence());
}

void Job::EvidenceCame(const saved::Member& member, const v1::NodeEvidence& evidence) {
  Suspicion& suspicion = live_.suspicion;
  const MonoTime now = context_.clock.now();
  if (evidence.stall() && !suspicion.look.has_value() && now >= suspicion.looks_again_at) {
    suspicion.look = Inquire(state_.generation, live_.connections, member.node(), now, &out_,
                             /*briefly=*/true);
  }
  if (suspicion.look.has_value()) {
    Hear(evidence, member, &*suspicion.look);
    Touch(false);
  }
  std::optional<Inquiry>& inquiry = suspicion.inquiry;
  if (!evidence.hang() && !inquiry.has_value()) return;
  if (!inquiry.has_value())
    inquiry = Inquire(state_.generation, live_.connections, member.node(), now, &out_);
  Hear(evidence, member, &*inquiry);
  Touch(false);
}

void Job::WorkerStarted(const saved::Member& member, const v1::WorkerStarted& started) {
  const uint32_t rank = member.first_rank() + started.local_rank();
  if (state_.phase() != v1::RUNNING || started.local_rank() >= member.slots() ||
      state_.generation.worker(rank) != saved::RANK_ASSIGNED) {
    return;
  }
  v1::Record record;
  record.mutable_worker_ran()->set_generation(state_.generation.number());
  record.mutable_worker_ran()->set_rank(rank);
  record.mutable_worker_ran()->set_pid(started.pid());
  record.mutable_worker_ran()->set_rejoined(started.rejoined());
  record.mutable_worker_ran()->set_warm(started.warm());
  record.mutable_worker_ran()->set_why_plain(
      OneLine(started.why_plain(), state::kMaxNodeTextBytes));
  record.mutable_worker_ran()->set_at_us(context_.now.micros());
  out_.Commit(std::move(record));
  Touch(true);
}

void Job::WorkerExited(const saved::Member& member, const v1::WorkerExited& exited) {
  const state::Generation& generation = state_.generation;
  const uint32_t rank = member.first_rank() + exited.local_rank();
  if (exited.local_rank() >= member.slots() || state::IsOver(generation.worker(rank))) return;
  Touch(true);
  const v1::WorkerExit& exit = exited.exit();
  const bool success = exited.cause() == v1::FAILURE_CAUSE_UNSPECIFIED && exit.exit_code() == 0 &&
                       exit.signal() == 0 && exit.exec_errno() == 0;
  if (success) return out_.Commit(WorkerEnded(state_, rank, std::nullopt, context_.now));
  v1::Failure failure = WorkerFailure(state_, member, exited);
  failure.set_unix_ms(context_.config.unix_ms_at_zero + context_.now.micros() / 1000);
  std::optional<Inquiry>& inquiry = live_.suspicion.inquiry;
  if (inquiry.has_value()) {
    // It ended while it was asked who hangs: that came first. But for one that died the others wait
    // in vain.
    if (inquiry->for_absent || inquiry->for_lost) {
      inquiry.reset();
    } else {
      EndInquiry();
    }
  }
  const bool asked_to =
      exit.exit_code() == kExitForNextGeneration && live_.checkpoint_asked == generation.number();
  if (state_.phase() == v1::RUNNING && asked_to) {
    out_.Commit(WorkerEnded(state_, rank, failure, context_.now));
    return OrderStop(absl::StrCat("rank ", rank, " has saved; more nodes wait"), std::nullopt);
  }
  if (state_.phase() == v1::RUNNING && rpc::LostItsPeer(exit)) {
    const std::string message = failure.message();
    if (!AddVictim(std::move(failure), context_.clock.now(), &live_.suspicion.victims)) return;
    return out_.Note(absl::StrCat(message, "; it lost another rank, whose end is awaited"));
  }
  if (state_.phase() == v1::RUNNING) return FailWorker(failure);
  if (exited.late() && generation.saved.stop().rejoin()) {
    failure.set_cause(v1::HANG);
    failure.set_message(absl::StrCat(rpc::WorkerName(rank, exited.local_rank(), member.node()),
                                     " did not give generation ", generation.number(),
                                     " up within ", ShortDuration(state_.policy.stop_grace),
                                     " and was killed"));
    out_.Note(failure.message());
  }
  // Reports of failures that are close to each other come in any order.
  if (FailedBefore(failure, state_.generation)) return FailWorker(failure);
  // A worker that a stop order ended is no evidence of anything.
  const bool stopped_by_us = exit.signal() == SIGTERM || exit.signal() == SIGKILL;
  // A port that is taken is one failure, for however many workers it was.
  const bool taken_port = exit.exec_errno() == EADDRINUSE;
  failure.set_collateral((!stopped_by_us && !asked_to && !taken_port) ||
                         failure.cause() == v1::HANG);
  out_.Commit(WorkerEnded(state_, rank, failure, context_.now));
}

void Job::WorkerGaveUp(const saved::Member& member, const v1::WorkerGaveUp& gave_up) {
  if (state_.phase() != v1::RUNNING || gave_up.local_rank() >= member.slots()) return;
  if (state::IsOver(state_.generation.worker(member.first_rank() + gave_up.local_rank()))) return;
  const v1::Failure failure = FailureOfRank(
      state_, member, gave_up.local_rank(), v1::CRASH,
      absl::StrCat("gave generation ", state_.generation.number(), " up: ", gave_up.reason()));
  Suspicion& suspicion = live_.suspicion;
  // Also when the first progress comes in while the nodes are asked.
  const bool asking = suspicion.inquiry.has_value() && suspicion.inquiry->for_absent;
  if (AwaitsOthers(view()) || asking) {
    // Whoever gives up first is a victim of one that did not come.
    if (!suspicion.inquiry.has_value()) {
      suspicion.inquiry =
          Inquire(state_.generation, live_.connections, "", context_.clock.now(), &out_);
      suspicion.inquiry->for_absent = true;
    }
    if (!suspicion.inquiry->otherwise.has_value()) suspicion.inquiry->otherwise = failure;
  } else if (!suspicion.given_up.has_value()) {
    suspicion.given_up = GivenUp{failure, context_.clock.now() + context_.config.reconnect_grace};
  }
  Touch(false);
}

void Job::NodeStopped(const saved::Member& member, const v1::NodeStopped& stopped) {
  if (member.cleared()) return;
  out_.Commit(
      NodeCleared(member.node(), state_.generation.number(), stopped.held_port(), context_.now));
  Touch(true);
  if (state_.phase() != v1::RUNNING || member.succeeded() == member.slots()) return;
  const std::vector<v1::Failure>& victims = live_.suspicion.victims.failures;
  if (!victims.empty()) {
    // What others have said so far of where they are.
    const std::optional<Inquiry>& inquiry = live_.suspicion.inquiry;
    return FailVictims(inquiry.has_value() ? inquiry->ranks : std::vector<v1::RankEvidence>());
  }
  // No process is left, yet not every worker's end was reported.
  uint32_t rank = member.first_rank();
  while (state_.generation.worker(rank) == saved::RANK_SUCCEEDED) ++rank;
  FailWorker(FailureOfRank(state_, member, rank - member.first_rank(), v1::CRASH,
                           absl::StrCat("is gone in generation ", state_.generation.number(),
                                        "; how it ended is unknown")));
}

void Job::FailWorker(const v1::Failure& failure) {
  // One that ended with 0 too early is the cause, and stays a success in the record.
  if (!state::IsOver(state_.generation.worker(failure.rank()))) {
    out_.Commit(WorkerEnded(state_, failure.rank(), failure, context_.now));
  }
  Touch(true);
  OrderStop(failure.message(), failure);
}

void Job::FailVictims(const std::vector<v1::RankEvidence>& others) {
  const v1::Failure cause = WhyLost(state_.generation, live_.suspicion.victims.failures);
  if (!rpc::WaitedInVain(cause.exit())) return FailWorker(cause);
  const std::optional<Standstill>& before = live_.suspicion.standstill;
  FailWorker(HangOf(cause, others,
                    before.has_value() ? before->ranks : std::vector<v1::RankEvidence>(),
                    before.has_value() ? context_.clock.now() - before->at : absl::ZeroDuration()));
}

void Job::EndLook() {
  Suspicion& suspicion = live_.suspicion;
  Inquiry look = *std::exchange(suspicion.look, std::nullopt);
  suspicion.looks_again_at = context_.clock.now() + kLookInterval;
  if (look.ranks.empty()) return;
  suspicion.standstill = {look.ranks, StandstillText(look.ranks), context_.clock.now()};
  Touch(true);
}

void Job::EndInquiry() {
  Inquiry inquiry = *std::exchange(live_.suspicion.inquiry, std::nullopt);
  if (inquiry.for_lost && rpc::WaitedInVain(inquiry.otherwise->exit())) {
    return FailVictims(inquiry.ranks);
  }
  const std::optional<v1::Failure> failure =
      FailureFoundBy(std::move(inquiry), state_.generation.number());
  if (failure.has_value()) FailWorker(*failure);
}

bool Job::AdvanceSuspicion() {
  Suspicion& suspicion = live_.suspicion;
  if (suspicion.inquiry.has_value() && suspicion.inquiry->IsOver(context_.clock.now())) {
    EndInquiry();
    return true;
  }
  if (suspicion.look.has_value() && suspicion.look->IsOver(context_.clock.now())) EndLook();
  const std::vector<v1::Failure>& victims = suspicion.victims.failures;
  if (!victims.empty() && !suspicion.inquiry.has_value()) {
    if (victims.size() + state_.generation.succeeded >= state_.generation.world_size()) {
      FailVictims({});
      return true;
    }
    if (context_.clock.now() >= suspicion.victims.believed_at) {
      Inquiry inquiry =
          Inquire(state_.generation, live_.connections, "", context_.clock.now(), &out_);
      inquiry.for_lost = true;
      inquiry.otherwise = WhyLost(state_.generation, victims);
      suspicion.inquiry = std::move(inquiry);
    }
  }
  if (!suspicion.given_up.has_value() || context_.clock.now() < suspicion.given_up->believed_at) {
    return false;
  }
  const v1::Failure failure = std::exchange(suspicion.given_up, std::nullopt)->failure;
  if (state_.generation.worker(failure.rank()) == saved::RANK_SUCCEEDED) return false;
  FailWorker(failure);
  return true;
}

}  // namespace cadre::job
