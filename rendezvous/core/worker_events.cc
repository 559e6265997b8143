// What nodes say of their workers: started, ended, gave up, all gone.
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/job/ranks.h"
#include "rendezvous/job/report.h"

namespace cadre {

void Core::Impl::OnWorkerStarted(const Session& session, const v1::WorkerStarted& started) {
  JobState* job = FindJob(session.job);
  const MemberState& member = job->generation.members[NodeRankOf(*job, session.node)];
  const uint32_t rank = member.first_rank + started.local_rank();
  if (job->phase != v1::RUNNING || started.local_rank() >= member.slots ||
      job->generation.workers[rank] != WorkerPhase::kAssigned) {
    return;
  }
  v1::Record record = NewRecord(session.job);
  record.mutable_worker_ran()->set_generation(job->generation.number);
  record.mutable_worker_ran()->set_rank(rank);
  record.mutable_worker_ran()->set_pid(started.pid());
  record.mutable_worker_ran()->set_rejoined(started.rejoined());
  record.mutable_worker_ran()->set_at_us(now.micros());
  Commit(std::move(record));
  Touch(session.job, true);
}

void Core::Impl::OnWorkerExited(const Session& session, const v1::WorkerExited& exited) {
  JobState* job = FindJob(session.job);
  const GenerationState& generation = job->generation;
  const MemberState& member = generation.members[NodeRankOf(*job, session.node)];
  const uint32_t rank = member.first_rank + exited.local_rank();
  if (exited.local_rank() >= member.slots || generation.workers[rank] == WorkerPhase::kSucceeded ||
      generation.workers[rank] == WorkerPhase::kFailed) {
    return;
  }
  const v1::WorkerExit& exit = exited.exit();
  const bool success = exited.cause() == v1::FAILURE_CAUSE_UNSPECIFIED && exit.exit_code() == 0 &&
                       exit.signal() == 0 && exit.exec_errno() == 0;
  if (success) return EndWorker(session.job, rank, std::nullopt);
  v1::Failure failure = WorkerFailure(*job, member, exited.local_rank(), exit, exited.cause());
  failure.set_unix_ms(config.unix_ms_at_zero + now.micros() / 1000);
  if (exited.has_evidence()) {
    v1::RankEvidence said = exited.evidence();
    said.set_local_rank(exited.local_rank());
    *failure.add_evidence() = CleanEvidence(said, member);
  }
  Live& live = lives[session.job];
  if (live.hang.has_value()) {
    // It ended while it was asked who hangs: that came first. But for one that died the others wait
    // in vain.
    if (live.hang->for_absent) {
      live.hang.reset();
    } else {
      EndInquiry(session.job, job, &live);
    }
  }
  const bool asked_to =
      exit.exit_code() == kExitForNextGeneration && live.checkpoint_asked == generation.number;
  if (job->phase == v1::RUNNING && asked_to) {
    EndWorker(session.job, rank, failure);
    return OrderStop(session.job, job, absl::StrCat("rank ", rank, " has saved; more nodes wait"),
                     std::nullopt);
  }
  if (job->phase == v1::RUNNING) {
    EndWorker(session.job, rank, failure);
    return OrderStop(session.job, job, failure.message(), failure);
  }
  if (exited.late() && generation.rejoin) {
    failure.set_cause(v1::HANG);
    failure.set_message(absl::StrCat("rank ", rank, " (local rank ", exited.local_rank(), ") on ",
                                     session.node, " did not give generation ", generation.number,
                                     " up within ", ShortDuration(job->policy.stop_grace),
                                     " and was killed"));
    Note(session.job, failure.message());
  }
  // A worker that a stop order ended is no evidence of anything.
  const bool stopped_by_us = exit.signal() == SIGTERM || exit.signal() == SIGKILL;
  failure.set_collateral((!stopped_by_us && !asked_to) || failure.cause() == v1::HANG);
  EndWorker(session.job, rank, failure);
}

void Core::Impl::OnWorkerGaveUp(const Session& session, const v1::WorkerGaveUp& gave_up) {
  JobState* job = FindJob(session.job);
  const MemberState& member = job->generation.members[NodeRankOf(*job, session.node)];
  if (job->phase != v1::RUNNING || gave_up.local_rank() >= member.slots) return;
  const uint32_t rank = member.first_rank + gave_up.local_rank();
  const WorkerPhase worker = job->generation.workers[rank];
  if (worker == WorkerPhase::kSucceeded || worker == WorkerPhase::kFailed) return;
  v1::Failure failure = PlainFailure(
      v1::CRASH, session.node, job->generation.number,
      absl::StrCat("rank ", rank, " (local rank ", gave_up.local_rank(), ") on ", session.node,
                   " gave generation ", job->generation.number, " up: ", gave_up.reason()));
  failure.set_rank(rank);
  failure.set_local_rank(gave_up.local_rank());
  Live& live = lives[session.job];
  // Also when the first progress comes in while the nodes are asked.
  const bool asking = live.hang.has_value() && live.hang->for_absent;
  if (AwaitsOthers(*job, live) || asking) {
    // Whoever gives up first is a victim of one that did not come.
    if (!live.hang.has_value()) {
      BeginInquiry(session.job, "", *job, &live);
      live.hang->for_absent = true;
    }
    if (!live.hang->otherwise.has_value()) live.hang->otherwise = failure;
  } else if (!live.given_up.has_value()) {
    live.given_up = failure;
    live.believed_at = clock + config.reconnect_grace;
  }
  Touch(session.job, false);
}

bool Core::Impl::AdvanceGivenUp(const std::string& name, JobState* job, Live* live) {
  if (!live->given_up.has_value() || clock < live->believed_at) return false;
  const v1::Failure failure = *std::exchange(live->given_up, std::nullopt);
  if (job->generation.workers[failure.rank()] == WorkerPhase::kSucceeded) return false;
  EndWorker(name, failure.rank(), failure);
  OrderStop(name, job, failure.message(), failure);
  return true;
}

void Core::Impl::EndWorker(const std::string& name, uint32_t rank,
                           const std::optional<v1::Failure>& failure) {
  v1::Record record = NewRecord(name);
  record.mutable_worker_ended()->set_generation(FindJob(name)->generation.number);
  record.mutable_worker_ended()->set_rank(rank);
  if (failure.has_value()) *record.mutable_worker_ended()->mutable_failure() = *failure;
  record.mutable_worker_ended()->set_at_us(now.micros());
  Commit(std::move(record));
  Touch(name, true);
}

void Core::Impl::OnNodeStopped(const Session& session, uint64_t generation,
                               const v1::NodeStopped& stopped) {
  JobState* job = FindJob(session.job);
  const MemberState& member = job->generation.members[NodeRankOf(*job, session.node)];
  if (member.cleared) return;
  v1::Record record = NewRecord(session.job);
  record.mutable_node_cleared()->set_generation(generation);
  record.mutable_node_cleared()->set_node(session.node);
  record.mutable_node_cleared()->set_held_port(stopped.held_port() <= 65535 ? stopped.held_port()
                                                                            : 0);
  record.mutable_node_cleared()->set_at_us(now.micros());
  Commit(std::move(record));
  Touch(session.job, true);
  if (job->phase != v1::RUNNING || member.succeeded == member.slots) return;
  // No process is left, yet not every worker's end was reported.
  uint32_t rank = member.first_rank;
  while (job->generation.workers[rank] == WorkerPhase::kSucceeded) ++rank;
  v1::Failure failure = PlainFailure(
      v1::CRASH, session.node, generation,
      absl::StrCat("rank ", rank, " (local rank ", rank - member.first_rank, ") on ", session.node,
                   " is gone in generation ", generation, "; how it ended is unknown"));
  failure.set_rank(rank);
  failure.set_local_rank(rank - member.first_rank);
  EndWorker(session.job, rank, failure);
  OrderStop(session.job, job, failure.message(), failure);
}

}  // namespace cadre
