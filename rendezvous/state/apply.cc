#include "rendezvous/state/apply.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"
#include "rendezvous/state/records.h"
#include "rendezvous/state/state_limits.h"

namespace cadre::state {
namespace {

// A job's history: shortened failures, and the timeline.

// How many bytes of a worker's last output lines are kept.
constexpr size_t kOtherFailureLines = 512;

v1::Failure WithoutBulk(v1::Failure failure) {
  if (failure.evidence_size() > 1) {
    failure.mutable_evidence()->DeleteSubrange(1, failure.evidence_size() - 1);
  }
  if (!failure.has_exit()) return failure;
  failure.mutable_exit()->clear_error_json();
  std::string* lines = failure.mutable_exit()->mutable_last_lines();
  if (lines->size() > kOtherFailureLines) {
    // The end says more than the beginning. It is cut at the start of a UTF-8 character.
    size_t from = lines->size() - kOtherFailureLines;
    while (from < lines->size() && (static_cast<unsigned char>((*lines)[from]) & 0xc0) == 0x80) {
      ++from;
    }
    lines->erase(0, from);
  }
  return failure;
}

// Failures other than the root cause are shortened, because the verdict that holds them is sent to
// every node.
void AddEarlier(const v1::Failure& failure, Job* job) {
  if (job->saved.earlier_size() < kMaxEarlier) *job->saved.add_earlier() = WithoutBulk(failure);
}

void AddCollateral(const v1::Failure& failure, saved::GenerationStop* stop) {
  if (stop->collateral_size() >= kMaxCollateral) return;
  v1::Failure* added = stop->add_collateral();
  *added = WithoutBulk(failure);
  added->set_collateral(true);
}

// Returns the entry of the newest generation, or null if none has formed.
v1::GenerationTimeline* LastTimeline(Job* job) {
  auto* generations = job->saved.mutable_timeline()->mutable_generations();
  return generations->empty() ? nullptr : generations->Mutable(generations->size() - 1);
}

// Converts a time of a record to microseconds since the job was created, as timelines have it.
int64_t SinceCreated(const Job& job, int64_t at_us) {
  return at_us - job.saved.times().created_us();
}

// Records of a job's current generation and its workers.

// Returns null if the node is no member or was lost.
saved::Member* FindMember(const std::string& node, Generation* generation) {
  const auto found = generation->node_ranks.find(node);
  if (found == generation->node_ranks.end()) return nullptr;
  saved::Member* member = generation->saved.mutable_members(static_cast<int>(found->second));
  return member->lost() ? nullptr : member;
}

// Sets the state of a worker that is not over, and updates the counts.
void SetWorker(uint32_t rank, saved::RankState to, Generation* generation) {
  const saved::RankState from = generation->worker(rank);
  CADRE_CHECK(!IsOver(from), "rank ", rank);
  generation->started += from == saved::RANK_ASSIGNED && to != saved::RANK_ASSIGNED;
  generation->running -= from == saved::RANK_RUNNING;
  generation->running += to == saved::RANK_RUNNING;
  generation->succeeded += to == saved::RANK_SUCCEEDED;
  generation->saved.set_workers(static_cast<int>(rank), to);
  CADRE_CHECK(generation->running <= generation->started &&
                  generation->started <= generation->world_size() &&
                  generation->succeeded <= generation->world_size(),
              "rank ", rank, ": ", generation->started, " started, ", generation->running, " run, ",
              generation->succeeded, " succeeded");
}

// Whether the record is about the current generation and a worker that is not over.
template <typename Body>
bool IsOfUnendedWorker(const Body& record, const Generation& generation) {
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

// Notes whether the worker was forked from a process that has imported the program's packages, or
// why not.
void RecordHowWorkerStarted(const v1::WorkerRan& record, Job* job) {
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

void FormGeneration(const v1::GenerationFormed& record, Job* job) {
  saved::Generation formed = record.generation();
  int workers = 0;
  for (const saved::Member& member : formed.members()) workers += static_cast<int>(member.slots());
  formed.mutable_workers()->Resize(workers, saved::RANK_ASSIGNED);
  job->generation = Generation(std::move(formed));
  job->store = keyspace::StoreContent();
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

void MarkWorkerRunning(const v1::WorkerRan& record, Job* job) {
  Generation& generation = job->generation;
  if (!IsOfUnendedWorker(record, generation)) return;
  if (generation.worker(record.rank()) != saved::RANK_ASSIGNED) return;
  SetWorker(record.rank(), saved::RANK_RUNNING, &generation);
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (record.rejoined() && timeline != nullptr) timeline->set_rejoined(timeline->rejoined() + 1);
  RecordHowWorkerStarted(record, job);
  MarkIfAllStarted(record.at_us(), job);
}

void SetImports(const v1::NodeImported& record, Job* job) {
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

void MarkWorkerEnded(const v1::WorkerEnded& record, Job* job) {
  Generation& generation = job->generation;
  if (!IsOfUnendedWorker(record, generation)) return;
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
  // Only a worker that was to go on in its process can hang while its generation is being stopped.
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

// LoseMember() marks the node as lost with its workers, ClearMember() as having no worker left.
// They do nothing if the node is no member or was lost before.
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

// Records of one job.

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
    // Older restarts cannot count any more: the budget is restart_max.
    if (static_cast<uint32_t>(times->size()) > job->policy.restart_max)
      times->erase(times->begin());
  }
  if (record.requeued()) {
    job->saved.mutable_submission()->set_requeued(!record.queued());
    if (record.queued()) job->saved.set_phase(v1::QUEUED);
  }
  const v1::Failure* root_cause = job->generation.root_cause();
  if (root_cause != nullptr) AddEarlier(*root_cause, job);
}

// The job must not have ended, and the record must be neither JobCreated nor JobEnded.
void ApplyToJob(const v1::Record& record, Job* job) {
  switch (record.body_case()) {
    case v1::Record::kNodeAdmitted:
      return AdmitNode(record.node_admitted(), job);
    case v1::Record::kNodeRemoved:
      return RemoveNode(record.node_removed(), job);
    case v1::Record::kGenerationFormed:
      return FormGeneration(record.generation_formed(), job);
    case v1::Record::kWorkerRan:
      return MarkWorkerRunning(record.worker_ran(), job);
    case v1::Record::kNodeImported:
      return SetImports(record.node_imported(), job);
    case v1::Record::kWorkerEnded:
      return MarkWorkerEnded(record.worker_ended(), job);
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
      // The store of an earlier generation was dropped with it.
      if (GenerationOfChange(record) == job->generation.number()) {
        job->store.Apply(ChangeOf(record));
      }
      return;
    default:
      return;
  }
}

// Drops the fields of the spec that only a start needs, since an ended job is not started again.
// What `cadre status` shows stays, with the first words of the command.
void DropStartFields(Job* job) {
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

// `ended` is the job's position in the order in which jobs ended.
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
  job->saved.mutable_times()->set_ended_us(record.at_us());
  job->store = keyspace::StoreContent();
  DropStartFields(job);
}

// Records of the cluster's nodes and allocations (jobs' shares of nodes, saved as parts).

// Returns null if there is no such job.
Job* FindJob(const std::string& name, State* state) {
  const auto found = state->jobs.find(name);
  return found == state->jobs.end() ? nullptr : &found->second;
}

void PlaceAllocation(const v1::PartPlaced& record, State* state) {
  saved::PlacedPart& placed = state->cluster.allocations[record.part().id()];
  *placed.mutable_part() = record.part();
  placed.set_placed_us(record.at_us());
  state->counters.set_last_part(std::max(state->counters.last_part(), record.part().id()));
  Job* job = FindJob(record.part().job(), state);
  if (job == nullptr) return;
  saved::JobTimes* times = job->saved.mutable_times();
  // A script that lost its node begins anew, with all of its time.
  const bool is_script = job->saved.spec().has_batch() && !record.part().holds();
  if (is_script || record.leaves_queue()) {
    times->set_limit_from_us(record.at_us());
    times->set_began_us(record.at_us());
  }
  if (!record.leaves_queue()) return;
  job->saved.set_phase(v1::GATHERING);
  // The timeline of a job that has run before goes on.
  if (job->saved.generations() == 0) times->set_created_us(record.at_us());
  times->set_gathering_us(record.at_us());
  times->set_last_join_us(record.at_us());
}

// Returns the entry of the node, after adding it if there is none. Entries are sorted by name.
v1::AvoidedNode* AvoidedNode(const std::string& node, saved::Submission* submission) {
  auto* avoided = submission->mutable_avoided();
  const auto at = std::lower_bound(
      avoided->begin(), avoided->end(), node,
      [](const v1::AvoidedNode& one, const std::string& name) { return one.node() < name; });
  if (at != avoided->end() && at->node() == node) return &*at;
  const int index = static_cast<int>(at - avoided->begin());
  avoided->Add()->set_node(node);
  std::rotate(avoided->begin() + index, avoided->end() - 1, avoided->end());
  return avoided->Mutable(index);
}

void Avoid(const v1::AvoidedNode& avoid, bool joined, saved::Submission* submission) {
  v1::AvoidedNode* avoided = AvoidedNode(avoid.node(), submission);
  avoided->set_reason(avoid.reason());
  avoided->set_unfit(avoided->unfit() || avoid.unfit());
  if (!joined) submission->set_failed_starts(submission->failed_starts() + 1);
}

// Adds what the job has used by the allocation, which ends now. Times are missing in older records.
// An allocation that is older than the job was that of an ended job of the same name, as are all if
// nodes brought the job.
void AddNodeTime(const saved::PlacedPart& allocation, int64_t at_us, saved::Job* job) {
  const int64_t held_us = at_us - allocation.placed_us();
  if (allocation.placed_us() == 0 || held_us <= 0 || job->submission().order() == 0 ||
      allocation.placed_us() < job->times().submitted_us()) {
    return;
  }
  const v1::Part& part = allocation.part();
  auto* times = job->mutable_node_times();
  const auto at = std::lower_bound(
      times->begin(), times->end(), part.node(),
      [](const saved::NodeTime& one, const std::string& name) { return one.node() < name; });
  const int index = static_cast<int>(at - times->begin());
  if (at == times->end() || at->node() != part.node()) {
    times->Add()->set_node(part.node());
    std::rotate(times->begin() + index, times->end() - 1, times->end());
  }
  saved::NodeTime* time = times->Mutable(index);
  time->set_held_us(time->held_us() + held_us);
  time->set_cpu_us(time->cpu_us() + held_us * part.cpus());
  time->set_gpu_us(time->gpu_us() + held_us * part.gpus());
}

void EndAllocation(const v1::PartEnded& record, State* state) {
  const auto found = state->cluster.allocations.find(record.id());
  if (found == state->cluster.allocations.end()) return;
  const saved::PlacedPart part = found->second;
  state->cluster.allocations.erase(found);
  Job* job = FindJob(part.part().job(), state);
  if (job == nullptr) return;
  AddNodeTime(part, record.at_us(), &job->saved);
  if (record.has_avoid()) Avoid(record.avoid(), part.joined(), job->saved.mutable_submission());
  if (!record.back_to_queue()) return;
  job->saved.set_phase(v1::QUEUED);
  job->saved.mutable_submission()->clear_requeued();
}

// Returns false, and changes nothing, if the record is about a single job.
bool ApplyToCluster(const v1::Record& record, State* state) {
  Cluster& cluster = state->cluster;
  switch (record.body_case()) {
    case v1::Record::kClusterNodeSet:
      cluster.nodes[record.cluster_node_set().node().name()] = record.cluster_node_set().node();
      return true;
    case v1::Record::kClusterNodeGone:
      cluster.nodes.erase(record.cluster_node_gone().node());
      return true;
    case v1::Record::kPartPlaced:
      PlaceAllocation(record.part_placed(), state);
      return true;
    case v1::Record::kPartTakenBack: {
      const auto found = cluster.allocations.find(record.part_taken_back().id());
      if (found != cluster.allocations.end()) found->second.set_taken_back(true);
      return true;
    }
    case v1::Record::kPartEnded:
      EndAllocation(record.part_ended(), state);
      return true;
    default:
      return false;
  }
}

// Marks that the launcher of the allocation has joined its job. `part` is 0 for a launcher without
// one.
void MarkJoined(uint64_t part, Cluster* cluster) {
  const auto found = cluster->allocations.find(part);
  if (found != cluster->allocations.end()) found->second.set_joined(true);
}

// Records that add a job, end it or restore it, with the indexes of all jobs.

// The job must still be in the state as the indexes count it.
void RemoveFromIndexes(const Job& job, State* state) {
  state->by_user.Shrink(job.owner(), {job.spec_bytes, job.store.all_bytes()});
  state->by_user.Remove(job.owner(), job.saved.ended());
  state->ended_jobs.erase(job.saved.ended());
  if (job.id() == 0) return;
  state->by_id.erase(job.id());
  const auto same_name = state->by_submitted_name.find(job.submitted_name());
  same_name->second.erase(job.id());
  if (same_name->second.empty()) state->by_submitted_name.erase(same_name);
}

void AddToIndexes(const Job& job, State* state) {
  state->by_user.Add(job.owner(), job.saved.ended());
  state->by_user.Grow(job.owner(), {job.spec_bytes, job.store.all_bytes()});
  if (job.saved.ended() != 0) state->ended_jobs[job.saved.ended()] = job.name();
  if (job.id() == 0) return;
  state->by_id[job.id()] = job.name();
  state->by_submitted_name[job.submitted_name()].insert(job.id());
}

void PutJob(const std::string& name, Job job, State* state) {
  const auto before = state->jobs.find(name);
  if (before != state->jobs.end()) RemoveFromIndexes(before->second, state);
  AddToIndexes(job, state);
  state->jobs[name] = std::move(job);
}

// Gives the ended job another name, because a new job takes this one.
void Rename(const std::string& name, const std::string& new_name, State* state) {
  auto moved = state->jobs.extract(name);
  if (moved.empty()) return;
  RemoveFromIndexes(moved.mapped(), state);
  saved::Job* job = &moved.mapped().saved;
  if (job->submission().name().empty()) job->mutable_submission()->set_name(name);
  job->mutable_spec()->set_name(new_name);
  AddToIndexes(moved.mapped(), state);
  moved.key() = new_name;
  state->jobs.insert(std::move(moved));
}

void CreateJob(const v1::JobCreated& record, const std::string& name, State* state) {
  Job job(record.job());
  saved::Counters& counters = state->counters;
  // A reused name continues the numbering of generations, so that no call of an old run matches a
  // new one.
  const auto before = state->jobs.find(name);
  job.generation.saved.set_number(before != state->jobs.end() ? before->second.generation.number()
                                                              : counters.forgotten_generation());
  counters.set_submitted(std::max(counters.submitted(), job.id()));
  const auto batch = state->by_id.find(job.saved.submission().step_of());
  if (batch != state->by_id.end()) {
    saved::Submission* submission = state->jobs.at(batch->second).saved.mutable_submission();
    submission->set_steps(submission->steps() + 1);
  }
  if (!record.ended_kept_as().empty()) Rename(name, record.ended_kept_as(), state);
  PutJob(name, std::move(job), state);
}

void RestoreJob(const saved::WholeJob& whole, State* state) {
  Job job(whole.job());
  for (const saved::AdmittedNode& node : whole.nodes()) {
    job.slots += node.node().slots();
    job.nodes[node.node().name()] = node;
  }
  job.generation = Generation(whole.generation());
  // Snapshots of earlier versions hold the whole spec of ended jobs.
  if (HasEnded(job.phase())) DropStartFields(&job);
  const std::string name = job.name();
  PutJob(name, std::move(job), state);
}

void Restore(const saved::State& piece, State* state) {
  if (piece.has_counters()) state->counters = piece.counters();
  for (const saved::ClusterNode& node : piece.nodes()) state->cluster.nodes[node.name()] = node;
  for (const saved::PlacedPart& part : piece.parts())
    state->cluster.allocations[part.part().id()] = part;
  for (const saved::WholeJob& job : piece.jobs()) RestoreJob(job, state);
}

void UpdateJob(const v1::JobUpdate& update, const std::string& name, State* state) {
  const auto found = state->jobs.find(name);
  if (found == state->jobs.end() || HasEnded(found->second.phase())) return;
  Job* job = &found->second;
  RemoveFromIndexes(*job, state);
  v1::JobSpec* spec = job->saved.mutable_spec();
  if (update.has_held()) job->saved.mutable_submission()->set_held(update.held());
  if (update.has_priority()) spec->set_priority(update.priority());
  if (update.has_limit()) *spec->mutable_timeouts()->mutable_total() = update.limit();
  if (update.has_begin_unix_ms()) {
    spec->mutable_queue()->set_begin_unix_ms(update.begin_unix_ms());
  }
  if (update.has_placement()) {
    *spec->mutable_placement()->mutable_nodes() = update.placement().nodes();
    *spec->mutable_placement()->mutable_exclude() = update.placement().exclude();
    *spec->mutable_placement()->mutable_labels() = update.placement().labels();
  }
  job->policy = PolicyOf(*spec);
  job->spec_bytes = spec->ByteSizeLong();
  AddToIndexes(*job, state);
}

// Returns the ended job that was dropped to make room; empty if none.
std::string EndJob(const v1::JobEnded& record, const std::string& name, State* state) {
  const auto found = state->jobs.find(name);
  if (found == state->jobs.end() || HasEnded(found->second.phase())) return "";
  Job* job = &found->second;
  RemoveFromIndexes(*job, state);
  saved::Counters& counters = state->counters;
  counters.set_jobs_ended(counters.jobs_ended() + 1);
  if (job->id() != 0) {
    for (std::string& node : AllocatedNodes(state->cluster, *job)) {
      job->saved.mutable_submission()->add_last_nodes(std::move(node));
    }
  }
  EndJob(record, counters.jobs_ended(), job);
  AddToIndexes(*job, state);
  if (state->ended_jobs.size() <= kMaxEndedJobs) return "";
  const std::string dropped = state->ended_jobs.at(state->by_user.NextToDrop());
  const auto oldest = state->jobs.find(dropped);
  counters.set_forgotten_generation(
      std::max(counters.forgotten_generation(), oldest->second.generation.number()));
  RemoveFromIndexes(oldest->second, state);
  state->jobs.erase(oldest);
  return dropped;
}

}  // namespace

std::string Apply(const v1::Record& record, State* state) {
  switch (record.body_case()) {
    case v1::Record::kSnapshot:
      Restore(record.snapshot(), state);
      return "";
    case v1::Record::kJobCreated:
      CreateJob(record.job_created(), record.job(), state);
      return "";
    case v1::Record::kJobEnded:
      return EndJob(record.job_ended(), record.job(), state);
    case v1::Record::kJobUpdated:
      UpdateJob(record.job_updated(), record.job(), state);
      return "";
    default:
      break;
  }
  if (ApplyToCluster(record, state)) return "";
  const auto found = state->jobs.find(record.job());
  if (found == state->jobs.end() || HasEnded(found->second.phase())) return "";
  if (record.has_node_admitted()) MarkJoined(record.node_admitted().part(), &state->cluster);
  Job* job = &found->second;
  const size_t before = job->store.all_bytes();
  ApplyToJob(record, job);
  const size_t now = job->store.all_bytes();
  if (now > before) state->by_user.Grow(job->owner(), {0, now - before});
  if (now < before) state->by_user.Shrink(job->owner(), {0, before - now});
  return "";
}

}  // namespace cadre::state
