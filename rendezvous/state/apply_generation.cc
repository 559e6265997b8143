#include "rendezvous/state/apply_generation.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "rendezvous/state/history.h"
#include "rendezvous/state/limits.h"

namespace cadre::state {
namespace {

// Null: no member that counts.
saved::Member* FindMember(const std::string& node, Generation* generation) {
  const auto found = generation->node_ranks.find(node);
  if (found == generation->node_ranks.end()) return nullptr;
  saved::Member* member = generation->saved.mutable_members(static_cast<int>(found->second));
  return member->lost() ? nullptr : member;
}

// Keeps the counts right. The worker is not over yet.
void SetWorker(uint32_t rank, saved::RankState to, Generation* generation) {
  const saved::RankState from = generation->worker(rank);
  generation->started += from == saved::RANK_ASSIGNED && to != saved::RANK_ASSIGNED;
  generation->running -= from == saved::RANK_RUNNING;
  generation->running += to == saved::RANK_RUNNING;
  generation->succeeded += to == saved::RANK_SUCCEEDED;
  generation->saved.set_workers(static_cast<int>(rank), to);
}

// The record is of the current generation and of a worker that is not over.
template <typename Body>
bool IsOfLiveWorker(const Body& record, const Generation& generation) {
  return record.generation() == generation.number() && record.rank() < generation.world_size() &&
         !IsOver(generation.worker(record.rank()));
}

void MarkIfAllStarted(int64_t at_us, Job* job) {
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (job->generation.started == job->generation.world_size() && timeline != nullptr &&
      timeline->running_us() == 0 && job->phase() == v1::RUNNING) {
    timeline->set_running_us(SinceCreated(*job, at_us));
  }
}

// Forked from a process that has imported the program's packages, or why not.
void NoteHowItBegan(const v1::WorkerRan& record, Job* job) {
  Generation& generation = job->generation;
  saved::Member* member = FindMember(generation.member_of(record.rank()).node(), &generation);
  if (member != nullptr) {
    member->set_warm(member->warm() + (record.warm() ? 1 : 0));
    if (member->why_plain().empty()) member->set_why_plain(record.why_plain());
  }
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (timeline == nullptr) return;
  timeline->set_warm(timeline->warm() + (record.warm() ? 1 : 0));
  if (timeline->why_plain().empty()) timeline->set_why_plain(record.why_plain());
}

}  // namespace

void FormGeneration(const v1::GenerationFormed& record, Job* job) {
  saved::Generation formed = record.generation();
  int workers = 0;
  for (const saved::Member& member : formed.members()) workers += static_cast<int>(member.slots());
  formed.mutable_workers()->Resize(workers, saved::RANK_ASSIGNED);
  job->generation = Generation(std::move(formed));
  job->store = keyspace::Stored();
  job->saved.set_phase(v1::RUNNING);
  job->saved.set_generations(job->saved.generations() + 1);
  auto* generations = job->saved.mutable_timeline()->mutable_generations();
  if (generations->size() >= kMaxTimeline) generations->DeleteSubrange(0, 1);
  v1::GenerationTimeline* timeline = generations->Add();
  timeline->set_generation(job->generation.number());
  timeline->set_nodes(job->generation.nodes());
  timeline->set_world_size(job->generation.world_size());
  timeline->set_gathering_us(SinceCreated(*job, job->saved.times().gathering_us()));
  timeline->set_formed_us(SinceCreated(*job, job->generation.saved.formed_us()));
}

void RunWorker(const v1::WorkerRan& record, Job* job) {
  Generation& generation = job->generation;
  if (!IsOfLiveWorker(record, generation)) return;
  if (generation.worker(record.rank()) != saved::RANK_ASSIGNED) return;
  SetWorker(record.rank(), saved::RANK_RUNNING, &generation);
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (record.rejoined() && timeline != nullptr) timeline->set_rejoined(timeline->rejoined() + 1);
  NoteHowItBegan(record, job);
  MarkIfAllStarted(record.at_us(), job);
}

void TakeImports(const v1::NodeImported& record, Job* job) {
  if (record.generation() != job->generation.number()) return;
  saved::Member* member = FindMember(record.node(), &job->generation);
  if (member == nullptr) return;
  *member->mutable_imports() = record.imports();
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (timeline == nullptr) return;
  timeline->set_imports_us(std::max(timeline->imports_us(), record.imports().worker_us()));
  for (const std::string& package : record.imports().left_to_workers()) {
    auto& left = *timeline->mutable_left_to_workers();
    if (std::find(left.begin(), left.end(), package) == left.end()) left.Add()->assign(package);
  }
}

void EndWorker(const v1::WorkerEnded& record, Job* job) {
  Generation& generation = job->generation;
  if (!IsOfLiveWorker(record, generation)) return;
  if (!record.has_failure()) {
    SetWorker(record.rank(), saved::RANK_SUCCEEDED, &generation);
    const uint32_t node_rank = generation.node_ranks.at(generation.member_of(record.rank()).node());
    saved::Member* member = generation.saved.mutable_members(static_cast<int>(node_rank));
    member->set_succeeded(member->succeeded() + 1);
    return MarkIfAllStarted(record.at_us(), job);
  }
  SetWorker(record.rank(), saved::RANK_FAILED, &generation);
  if (!record.failure().collateral()) return;
  AddCollateral(record.failure(), generation.saved.mutable_stop());
  // One that hangs while its generation is being stopped was to go on in its process.
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (record.failure().cause() == v1::HANG && timeline->late().empty()) {
    timeline->set_late(record.failure().message());
  }
}

void OrderStop(const v1::StopOrdered& record, Job* job) {
  Generation& generation = job->generation;
  if (record.generation() != generation.number()) return;
  v1::GenerationTimeline* timeline = LastTimeline(job);
  saved::GenerationStop* stop = generation.saved.mutable_stop();
  if (job->phase() == v1::RUNNING) {
    job->saved.set_phase(v1::STOPPING);
    stop->set_rejoin(record.rejoin());
    stop->set_ordered_us(record.at_us());
    timeline->set_stopping_us(SinceCreated(*job, record.at_us()));
  }
  stop->set_reason(record.reason());
  timeline->set_end_reason(record.reason());
  if (!record.has_root_cause()) return;
  if (!stop->has_root_cause()) {
    stop->set_failed_us(record.at_us());
    timeline->set_failed_us(SinceCreated(*job, record.at_us()));
  } else if (record.unrelated()) {
    AddEarlier(stop->root_cause(), job);
  } else {
    AddCollateral(stop->root_cause(), stop);
  }
  *stop->mutable_root_cause() = record.root_cause();
}

void LoseMember(const std::string& node, Generation* generation) {
  saved::Member* member = FindMember(node, generation);
  if (member == nullptr) return;
  member->set_lost(true);
  if (!member->cleared()) --generation->nodes_busy;
  for (uint32_t i = 0; i < member->slots(); ++i) {
    const uint32_t rank = member->first_rank() + i;
    if (!IsOver(generation->worker(rank))) SetWorker(rank, saved::RANK_FAILED, generation);
  }
}

void ClearMember(const std::string& node, Generation* generation) {
  saved::Member* member = FindMember(node, generation);
  if (member == nullptr) return;
  if (!member->cleared()) --generation->nodes_busy;
  member->set_cleared(true);
}

}  // namespace cadre::state
