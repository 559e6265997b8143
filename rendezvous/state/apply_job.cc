#include "rendezvous/state/apply_job.h"

#include <algorithm>

#include "rendezvous/state/apply_generation.h"
#include "rendezvous/state/history.h"
#include "rendezvous/state/limits.h"
#include "rendezvous/state/store_records.h"

namespace cadre::state {
namespace {

void AdmitNode(const v1::NodeAdmitted& record, Job* job) {
  saved::AdmittedNode& node = job->nodes[record.node().name()];
  job->slots += record.node().slots();
  job->slots -= node.node().slots();
  *node.mutable_node() = record.node();
  job->saved.set_admissions(job->saved.admissions() + 1);
  node.set_admission(job->saved.admissions());
  if (job->saved.expected_nodes().empty()) {
    *job->saved.mutable_expected_nodes() = record.expected_nodes();
  }
  job->saved.mutable_times()->set_last_join_us(record.at_us());
}

void RemoveNode(const v1::NodeRemoved& record, Job* job) {
  const auto found = job->nodes.find(record.node());
  if (found == job->nodes.end()) return;
  if (record.how() == v1::NodeRemoved::REMAINS) {
    v1::GenerationTimeline* timeline = LastTimeline(job);
    if (timeline != nullptr && timeline->late().empty()) timeline->set_late(record.reason());
    return LoseMember(record.node(), &job->generation);
  }
  job->slots -= found->second.node().slots();
  job->nodes.erase(found);
  LoseMember(record.node(), &job->generation);
}

void ClearNode(const v1::NodeCleared& record, Job* job) {
  const auto node = job->nodes.find(record.node());
  if (node != job->nodes.end() && record.held_port() != 0) {
    node->second.mutable_node()->set_held_port(record.held_port());
  }
  if (record.generation() == job->generation.number()) {
    ClearMember(record.node(), &job->generation);
  }
}

void MarkStopped(int64_t at_us, Job* job) {
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (job->phase() == v1::STOPPING && timeline != nullptr) {
    timeline->set_stopped_us(SinceCreated(*job, at_us));
  }
}

void BeginGathering(const v1::GatheringBegan& record, Job* job) {
  MarkStopped(record.at_us(), job);
  job->saved.set_phase(v1::GATHERING);
  job->saved.mutable_times()->set_gathering_us(record.at_us());
  job->saved.mutable_times()->set_not_before_us(record.not_before_us());
  saved::Restarts* restarts = job->saved.mutable_restarts();
  restarts->set_all(record.restart_count());
  if (record.got_on()) restarts->set_in_vain(0);
  restarts->set_furthest_step(std::max(restarts->furthest_step(), record.step()));
  if (record.counted()) {
    restarts->set_counted(restarts->counted() + 1);
    restarts->set_in_vain(restarts->in_vain() + 1);
    auto* times = restarts->mutable_counted_us();
    times->Add(record.at_us());
    // No budget is larger than what can still count.
    if (static_cast<uint32_t>(times->size()) > job->policy.restart_max)
      times->erase(times->begin());
  }
  const v1::Failure* root_cause = job->generation.root_cause();
  if (root_cause != nullptr) AddEarlier(*root_cause, job);
}

}  // namespace

void ApplyToJob(const v1::Record& record, Job* job) {
  switch (record.body_case()) {
    case v1::Record::kNodeAdmitted:
      return AdmitNode(record.node_admitted(), job);
    case v1::Record::kNodeRemoved:
      return RemoveNode(record.node_removed(), job);
    case v1::Record::kGenerationFormed:
      return FormGeneration(record.generation_formed(), job);
    case v1::Record::kWorkerRan:
      return RunWorker(record.worker_ran(), job);
    case v1::Record::kNodeImported:
      return TakeImports(record.node_imported(), job);
    case v1::Record::kWorkerEnded:
      return EndWorker(record.worker_ended(), job);
    case v1::Record::kStopOrdered:
      return OrderStop(record.stop_ordered(), job);
    case v1::Record::kNodeCleared:
      return ClearNode(record.node_cleared(), job);
    case v1::Record::kGatheringBegan:
      return BeginGathering(record.gathering_began(), job);
    case v1::Record::kKeyWritten:
    case v1::Record::kKeyErased:
    case v1::Record::kCommunicatorIdPublished:
    case v1::Record::kStoreAnswered:
      // The store of an earlier generation went with it.
      if (GenerationOfChange(record) == job->generation.number()) {
        job->store.Apply(ChangeOf(record));
      }
      return;
    default:
      return;
  }
}

void EndJob(const v1::JobEnded& record, uint64_t ended, Job* job) {
  MarkStopped(record.at_us(), job);
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (timeline != nullptr && job->phase() == v1::RUNNING) {
    timeline->set_stopped_us(SinceCreated(*job, record.at_us()));
    timeline->set_end_reason("succeeded");
  }
  job->saved.set_phase(record.verdict().outcome());
  *job->saved.mutable_verdict() = record.verdict();
  job->saved.set_ended(ended);
  job->store = keyspace::Stored();
  DropStart(job);
}

void DropStart(Job* job) {
  job->spec_bytes = 0;
  v1::JobSpec* spec = job->saved.mutable_spec();
  spec->clear_env();
  spec->clear_placement();
  spec->clear_slurm();
  if (spec->has_restart()) spec->mutable_restart()->clear_preload();
  size_t kept = spec->working_dir().size();
  int words = 0;
  while (words < spec->command_size() && kept + spec->command(words).size() < kMaxEndedSpecBytes) {
    kept += spec->command(words++).size();
  }
  spec->mutable_command()->DeleteSubrange(words, spec->command_size() - words);
  if (spec->working_dir().size() > kMaxEndedSpecBytes) spec->clear_working_dir();
}

}  // namespace cadre::state
