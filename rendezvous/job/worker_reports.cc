// Methods of Job (job.h) that handle what nodes report of their workers: started, ended, gave up,
// all gone. A failure stops the generation (Job::OrderStop()). Evidence of a hang is handled in
// hang_diagnosis.cc.
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "rendezvous/job/failure.h"
#include "rendezvous/job/hang_diagnosis.h"
#include "rendezvous/job/job.h"
#include "rendezvous/job/job_records.h"
#include "rendezvous/job/orders.h"
#include "rendezvous/job/restart_decision.h"
#include "rendezvous/state/state_limits.h"
#include "rpc/lost_peer.h"
#include "rpc/program_error.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

// How long to wait for the report of a rank's end after others lost it. Clean-up and the end of an
// interpreter with a device take a second or two.
constexpr absl::Duration kCauseTimeout = absl::Seconds(3);

// Adds a worker that lost another one. For kCauseTimeout after the first such victim the report of
// the lost worker's own end may still arrive and give the cause. Returns false if the victim is
// known and was reported again on another connection.
bool AddVictim(v1::Failure failure, MonoTime now, Victims* victims) {
  for (const v1::Failure& known : victims->failures) {
    if (known.rank() == failure.rank()) return false;
  }
  if (victims->failures.empty()) victims->fails_at = now + kCauseTimeout;
  if (victims->failures.size() > state::kMaxCollateral) {
    // Further victims are never shown in detail.
    failure.mutable_exit()->clear_last_lines();
    failure.mutable_exit()->clear_error_json();
  }
  victims->failures.push_back(std::move(failure));
  return true;
}

// Whether the worker's error file is older than that of the root cause, by the two nodes' clocks in
// seconds; torchrun compares them too. If so, the supposed root cause follows from this failure.
bool FailedBefore(const v1::Failure& failure, const state::Generation& generation) {
  const v1::Failure* root = generation.root_cause();
  if (root == nullptr || IsDecisive(*root) || root->rank() == failure.rank() ||
      rpc::LostPeer(failure.exit())) {
    return false;
  }
  const auto failed = rpc::ErrorFileSeconds(failure.exit());
  const auto root_failed = rpc::ErrorFileSeconds(root->exit());
  return failed.has_value() && root_failed.has_value() && *failed < *root_failed;
}

// Returns the failure of a worker that reports nothing of its end: "rank 3 (local rank 1) on n0
// <what>".
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

std::string OldUnkillableText(const v1::WorkerRemains& remains, const NodeConnection& connection,
                              const std::string& node) {
  const uint32_t local_rank = remains.local_rank();
  const std::string who =
      connection.old_first_rank < 0
          ? absl::StrCat("a worker of generation ", connection.old_generation.number,
                         " (local rank ", local_rank, ") on ", node)
          : rpc::WorkerName(connection.old_first_rank + local_rank, local_rank, node);
  return OneLine(absl::StrCat(who, " ", rpc::UnkillableText(remains)), state::kMaxMessageBytes);
}

bool AreSame(const v1::ProgramImports& a, const v1::ProgramImports& b) {
  return a.worker_us() == b.worker_us() && a.template_us() == b.template_us() &&
         a.template_modules() == b.template_modules() &&
         a.left_to_workers_size() == b.left_to_workers_size();
}

}  // namespace

void Job::OnGenerationMessage(const std::string& node, const v1::NodeMessage& message) {
  const GenerationId named = NamedBy(message, context_);
  const uint64_t generation = named.number;
  const bool ours = named.server_id == context_.config.server_id;
  const NodeConnection& connection = *volatile_.connections.Find(node);
  if (named.exists() && named == connection.old_generation) {
    if (message.has_node_stopped()) OnOldWorkersStopped(node, message.node_stopped());
    const v1::WorkerRemains& remains = message.worker_remains();
    if (message.has_worker_remains() &&
        remains.local_rank() < state_.nodes.at(node).node().slots()) {
      volatile_.connections.AddUnkillable(node, remains.local_rank(),
                                          OldUnkillableText(remains, connection, node));
      cluster_events_.launchers_lost.emplace_back(name_, node);
      MarkDirty(true);
    }
    return;
  }
  if (ours && generation > state_.generation.number()) {
    const StreamId stream = *volatile_.connections.StreamOf(node);
    OnStreamClosed(node);
    return out_.Close(stream, absl::InvalidArgumentError(absl::StrCat(
                                  "generation ", generation, " has not begun; the current one is ",
                                  state_.generation.number())));
  }
  const int node_rank = NodeRankOf(state_, node);
  if (!ours || generation < state_.generation.number() || node_rank < 0) {
    return out_.Note(absl::StrCat("ignored a report of node ", node, " about generation ",
                                  generation, ", which it does not take part in now"));
  }
  const saved::Member& member = state_.generation.member(node_rank);
  if (message.has_worker_started()) return OnWorkerStarted(member, message.worker_started());
  if (message.has_worker_exited()) return OnWorkerExited(member, message.worker_exited());
  if (message.has_worker_gave_up()) return OnWorkerGaveUp(member, message.worker_gave_up());
  if (message.has_node_stopped()) return OnNodeStopped(member, message.node_stopped());
  if (message.has_worker_remains()) {
    const v1::WorkerRemains& remains = message.worker_remains();
    if (remains.local_rank() >= member.slots()) return;
    return OnUnkillableWorker(FailureOfRank(state_, member, remains.local_rank(), v1::NODE_LOST,
                                            rpc::UnkillableText(remains)));
  }
  if (state_.phase() != v1::RUNNING) return;
  if (message.has_imports()) {
    // Nodes report this on each new connection, but only changes are saved.
    if (AreSame(member.imports(), message.imports())) return;
    v1::Record record;
    record.mutable_node_imported()->set_generation(state_.generation.number());
    record.mutable_node_imported()->set_node(member.node());
    *record.mutable_node_imported()->mutable_imports() = message.imports();
    out_.Commit(std::move(record));
    return MarkDirty(false);
  }
  if (message.has_progress()) {
    const bool other_step = volatile_.progress.Note(state_, node, message.progress(), context_.now);
    if (other_step) volatile_.suspects.standstill.reset();
    volatile_.push.progressed = true;
    return MarkDirty(false);
  }
  OnEvidence(member, message.evidence());
}

void Job::OnWorkerStarted(const saved::Member& member, const v1::WorkerStarted& started) {
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
  MarkDirty(true);
}

void Job::OnWorkerExited(const saved::Member& member, const v1::WorkerExited& exited) {
  const state::Generation& generation = state_.generation;
  const uint32_t rank = member.first_rank() + exited.local_rank();
  if (exited.local_rank() >= member.slots() || state::IsOver(generation.worker(rank))) return;
  MarkDirty(true);
  const v1::WorkerExit& exit = exited.exit();
  const bool success = exited.cause() == v1::FAILURE_CAUSE_UNSPECIFIED && exit.exit_code() == 0 &&
                       exit.signal() == 0 && exit.exec_errno() == 0;
  if (success) return out_.Commit(WorkerEnded(state_, rank, std::nullopt, context_.now));
  v1::Failure failure = WorkerFailure(state_, member, exited);
  failure.set_unix_ms(context_.config.unix_ms_at_zero + context_.now.micros() / 1000);
  std::optional<HangDiagnosis>& diagnosis = volatile_.suspects.diagnosis;
  if (diagnosis.has_value()) {
    // The worker ended during a diagnosis. If it was of a hang, that came first and is decided now.
    // If the nodes were asked for an absent or lost rank, this worker is that rank.
    if (diagnosis->for_absent || diagnosis->for_lost) {
      diagnosis.reset();
    } else {
      EndDiagnosis();
    }
  }
  const bool asked_to = exit.exit_code() == kExitForNextGeneration &&
                        volatile_.checkpoint_asked == generation.number();
  if (state_.phase() == v1::RUNNING && asked_to) {
    out_.Commit(WorkerEnded(state_, rank, failure, context_.now));
    return OrderStop(absl::StrCat("rank ", rank, " has saved; more nodes wait"), std::nullopt);
  }
  if (state_.phase() == v1::RUNNING && rpc::LostPeer(exit)) {
    const std::string message = failure.message();
    if (!AddVictim(std::move(failure), context_.clock.now(), &volatile_.suspects.victims)) return;
    return out_.Note(absl::StrCat(message, "; it lost another rank, whose exit report is awaited"));
  }
  if (state_.phase() == v1::RUNNING) return FailWorker(failure);
  if (exited.late() && generation.saved.stop().rejoin()) {
    failure.set_cause(v1::HANG);
    failure.set_message(absl::StrCat(rpc::WorkerName(rank, exited.local_rank(), member.node()),
                                     " was told to leave generation ", generation.number(),
                                     ", had not done so after ",
                                     ShortDuration(state_.policy.stop_grace), ", and was killed"));
    out_.Note(failure.message());
  }
  // Failures that are close to each other may be reported in any order.
  if (FailedBefore(failure, state_.generation)) return FailWorker(failure);
  // A worker that a stop order ended is evidence of nothing.
  const bool stopped_by_us = exit.signal() == SIGTERM || exit.signal() == SIGKILL;
  // A taken port is one failure, however many workers were to use it.
  const bool taken_port = exit.exec_errno() == EADDRINUSE;
  failure.set_collateral((!stopped_by_us && !asked_to && !taken_port) ||
                         failure.cause() == v1::HANG);
  out_.Commit(WorkerEnded(state_, rank, failure, context_.now));
}

void Job::OnWorkerGaveUp(const saved::Member& member, const v1::WorkerGaveUp& gave_up) {
  if (state_.phase() != v1::RUNNING || gave_up.local_rank() >= member.slots()) return;
  if (state::IsOver(state_.generation.worker(member.first_rank() + gave_up.local_rank()))) return;
  const v1::Failure failure = FailureOfRank(
      state_, member, gave_up.local_rank(), v1::CRASH,
      absl::StrCat("gave generation ", state_.generation.number(), " up: ", gave_up.reason()));
  Suspects& suspects = volatile_.suspects;
  // Also true if the first progress arrives while the nodes are being asked.
  const bool asking = suspects.diagnosis.has_value() && suspects.diagnosis->for_absent;
  if (AwaitsProgressAfterRejoin(view()) || asking) {
    // The first to give up is a victim of one that did not arrive.
    if (!suspects.diagnosis.has_value()) {
      suspects.diagnosis =
          StartDiagnosis(state_.generation, volatile_.connections, "", context_.clock.now(), &out_);
      suspects.diagnosis->for_absent = true;
    }
    if (!suspects.diagnosis->otherwise.has_value()) suspects.diagnosis->otherwise = failure;
  } else if (!suspects.given_up.has_value()) {
    suspects.given_up = GivenUp{failure, context_.clock.now() + context_.config.reconnect_grace};
  }
  MarkDirty(false);
}

void Job::OnNodeStopped(const saved::Member& member, const v1::NodeStopped& stopped) {
  if (member.cleared()) return;
  out_.Commit(
      NodeCleared(member.node(), state_.generation.number(), stopped.held_port(), context_.now));
  MarkDirty(true);
  if (state_.phase() != v1::RUNNING || member.succeeded() == member.slots()) return;
  const std::vector<v1::Failure>& victims = volatile_.suspects.victims.failures;
  if (!victims.empty()) {
    // Uses the answers of other nodes so far.
    const std::optional<HangDiagnosis>& diagnosis = volatile_.suspects.diagnosis;
    return FailVictims(diagnosis.has_value() ? diagnosis->ranks : std::vector<v1::RankEvidence>());
  }
  // No process is left, but not all workers' ends were reported.
  uint32_t rank = member.first_rank();
  while (state_.generation.worker(rank) == saved::RANK_SUCCEEDED) ++rank;
  FailWorker(FailureOfRank(state_, member, rank - member.first_rank(), v1::CRASH,
                           absl::StrCat("is gone in generation ", state_.generation.number(),
                                        "; how it ended is unknown")));
}

void Job::FailWorker(const v1::Failure& failure) {
  // A worker that exited with 0 too early is the cause, but stays a success in the record.
  if (!state::IsOver(state_.generation.worker(failure.rank()))) {
    out_.Commit(WorkerEnded(state_, failure.rank(), failure, context_.now));
  }
  MarkDirty(true);
  OrderStop(failure.message(), failure);
}

}  // namespace cadre::job
