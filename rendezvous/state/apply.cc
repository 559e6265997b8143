#include "rendezvous/state/apply.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "rendezvous/job/restart.h"
#include "rendezvous/state/apply_cluster.h"
#include "rendezvous/state/snapshot.h"
#include "rendezvous/state/store_records.h"

namespace cadre {
namespace {

// Evidence of failures other than the root cause is kept short: a verdict goes to every node.
constexpr size_t kOtherFailureLines = 512;

v1::Failure WithoutBulk(v1::Failure failure) {
  if (failure.evidence_size() > 1) {
    failure.mutable_evidence()->DeleteSubrange(1, failure.evidence_size() - 1);
  }
  if (!failure.has_exit()) return failure;
  failure.mutable_exit()->clear_error_json();
  std::string* lines = failure.mutable_exit()->mutable_last_lines();
  if (lines->size() > kOtherFailureLines) {
    // The end says more than the beginning; it starts at a whole character.
    size_t from = lines->size() - kOtherFailureLines;
    while (from < lines->size() && (static_cast<unsigned char>((*lines)[from]) & 0xc0) == 0x80) {
      ++from;
    }
    lines->erase(0, from);
  }
  return failure;
}

v1::GenerationTimeline* LastTimeline(JobState* job) {
  auto* generations = job->timeline.mutable_generations();
  return generations->empty() ? nullptr : generations->Mutable(generations->size() - 1);
}

MemberState* FindMember(GenerationState* generation, const std::string& node) {
  const auto found = generation->node_ranks.find(node);
  return found == generation->node_ranks.end() ? nullptr : &generation->members[found->second];
}

void AddCollateral(GenerationState* generation, const v1::Failure& failure) {
  if (generation->collateral.size() >= kMaxCollateral) return;
  generation->collateral.push_back(WithoutBulk(failure));
  generation->collateral.back().set_collateral(true);
}

void CreateJob(const v1::JobCreated& record, State* state, JobState* job) {
  // A name that is used again goes on counting generations, so that no old call fits a new run.
  const uint64_t generation = job->generation.number;
  *job = JobState();
  job->spec = record.spec();
  job->policy = PolicyOf(record.spec());
  job->generation.number = generation;
  job->created_us = job->gathering_us = job->last_join_us = record.at_us();
  job->user = record.user();
  job->request_id = record.request_id();
  job->run = record.run();
  if (job->user.empty()) return;
  job->phase = v1::QUEUED;
  job->order = ++state->cluster.submitted;
}

void AdmitNode(const v1::NodeAdmitted& record, JobState* job) {
  NodeState& node = job->nodes[record.node()];
  job->slots += record.slots() - node.slots;
  node.name = record.node();
  node.host = record.host();
  node.address = record.address();
  node.slots = record.slots();
  node.incarnation = record.incarnation();
  node.wanted_node_rank = record.wanted_node_rank();
  node.held_port = record.held_port();
  node.master_addr = record.master_addr();
  node.master_port = record.master_port();
  node.adopt_timeout = FromProto(record.adopt_timeout());
  node.admission = ++job->admissions;
  if (job->expected_nodes.empty()) {
    job->expected_nodes.assign(record.expected_nodes().begin(), record.expected_nodes().end());
  }
  job->last_join_us = record.at_us();
}

void RemoveNode(const v1::NodeRemoved& record, JobState* job) {
  const auto found = job->nodes.find(record.node());
  if (found == job->nodes.end()) return;
  job->slots -= found->second.slots;
  job->nodes.erase(found);
  GenerationState& generation = job->generation;
  MemberState* member = FindMember(&generation, record.node());
  if (member == nullptr || member->lost) return;
  member->lost = true;
  if (!member->cleared) --generation.nodes_busy;
  for (uint32_t rank = member->first_rank; rank < member->first_rank + member->slots; ++rank) {
    RankState& worker = generation.workers[rank];
    if (worker == RankState::kSucceeded || worker == RankState::kFailed) continue;
    if (worker == RankState::kRunning) --generation.running;
    if (worker == RankState::kAssigned) ++generation.started;
    worker = RankState::kFailed;
  }
}

void FormGeneration(const v1::GenerationFormed& record, JobState* job) {
  GenerationState generation;
  generation.number = record.generation();
  generation.master_addr = record.master_addr();
  generation.master_port = record.master_port();
  generation.restart_count = record.restart_count();
  generation.formed_us = record.at_us();
  for (const v1::Member& member : record.members()) {
    MemberState state;
    state.node = member.node();
    state.first_rank = member.first_rank();
    state.slots = member.slots();
    generation.node_ranks[member.node()] = generation.members.size();
    generation.members.push_back(std::move(state));
    generation.workers.resize(member.first_rank() + member.slots(), RankState::kAssigned);
  }
  generation.nodes_busy = generation.members.size();
  job->generation = std::move(generation);
  job->store = keyspace::Stored();
  job->phase = v1::RUNNING;
  ++job->generations_announced;
  auto* generations = job->timeline.mutable_generations();
  if (generations->size() >= kMaxTimeline) generations->DeleteSubrange(0, 1);
  v1::GenerationTimeline* timeline = generations->Add();
  timeline->set_generation(record.generation());
  timeline->set_nodes(record.members_size());
  timeline->set_world_size(job->generation.workers.size());
  timeline->set_gathering_us(job->gathering_us - job->created_us);
  timeline->set_formed_us(record.at_us() - job->created_us);
}

void NoteAllStarted(int64_t at_us, JobState* job) {
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (job->generation.started == job->generation.workers.size() && timeline != nullptr &&
      timeline->running_us() == 0 && job->phase == v1::RUNNING) {
    timeline->set_running_us(at_us - job->created_us);
  }
}

void RunWorker(const v1::WorkerRan& record, JobState* job) {
  GenerationState& generation = job->generation;
  if (record.generation() != generation.number || record.rank() >= generation.workers.size()) {
    return;
  }
  RankState& worker = generation.workers[record.rank()];
  if (worker != RankState::kAssigned) return;
  worker = RankState::kRunning;
  ++generation.running;
  ++generation.started;
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (record.rejoined() && timeline != nullptr) timeline->set_rejoined(timeline->rejoined() + 1);
  NoteAllStarted(record.at_us(), job);
}

// Member whose ranks include `rank`.
MemberState* MemberOfRank(GenerationState* generation, uint32_t rank) {
  auto next =
      std::upper_bound(generation->members.begin(), generation->members.end(), rank,
                       [](uint32_t r, const MemberState& member) { return r < member.first_rank; });
  return &*--next;
}

void EndWorker(const v1::WorkerEnded& record, JobState* job) {
  GenerationState& generation = job->generation;
  if (record.generation() != generation.number || record.rank() >= generation.workers.size()) {
    return;
  }
  RankState& worker = generation.workers[record.rank()];
  if (worker == RankState::kSucceeded || worker == RankState::kFailed) return;
  if (worker == RankState::kRunning) --generation.running;
  if (worker == RankState::kAssigned) ++generation.started;
  if (!record.has_failure()) {
    worker = RankState::kSucceeded;
    ++generation.succeeded;
    ++MemberOfRank(&generation, record.rank())->succeeded;
    NoteAllStarted(record.at_us(), job);
    return;
  }
  worker = RankState::kFailed;
  if (!record.failure().collateral()) return;
  AddCollateral(&generation, record.failure());
  // One that hangs while its generation is being stopped was to go on in its process.
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (record.failure().cause() == v1::HANG && timeline->late().empty()) {
    timeline->set_late(record.failure().message());
  }
}

void AddEarlier(const v1::Failure& failure, JobState* job) {
  if (job->earlier.size() < kMaxEarlier) job->earlier.push_back(WithoutBulk(failure));
}

void OrderStop(const v1::StopOrdered& record, JobState* job) {
  GenerationState& generation = job->generation;
  if (record.generation() != generation.number) return;
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (job->phase == v1::RUNNING) {
    job->phase = v1::STOPPING;
    generation.rejoin = record.rejoin();
    generation.stopping_us = record.at_us();
    timeline->set_stopping_us(record.at_us() - job->created_us);
  }
  generation.stop_reason = record.reason();
  timeline->set_end_reason(record.reason());
  if (!record.has_root_cause()) return;
  if (!generation.root_cause.has_value()) {
    generation.failed_us = record.at_us();
    timeline->set_failed_us(record.at_us() - job->created_us);
  } else if (job::HasLastWord(record.root_cause())) {
    AddEarlier(*generation.root_cause, job);
  } else {
    // A second order corrects the root cause; what was taken for it followed from it.
    AddCollateral(&generation, *generation.root_cause);
  }
  generation.root_cause = record.root_cause();
}

void ClearNode(const v1::NodeCleared& record, JobState* job) {
  const auto node = job->nodes.find(record.node());
  if (node != job->nodes.end() && record.held_port() != 0) {
    node->second.held_port = record.held_port();
  }
  if (record.generation() != job->generation.number) return;
  MemberState* member = FindMember(&job->generation, record.node());
  if (member == nullptr || member->lost) return;
  if (!member->cleared) --job->generation.nodes_busy;
  member->cleared = true;
}

void NoteStopped(int64_t at_us, JobState* job) {
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (job->phase == v1::STOPPING && timeline != nullptr) {
    timeline->set_stopped_us(at_us - job->created_us);
  }
}

void BeginGathering(const v1::GatheringBegan& record, JobState* job) {
  NoteStopped(record.at_us(), job);
  job->phase = v1::GATHERING;
  job->restart_count = record.restart_count();
  job->gathering_us = record.at_us();
  job->not_before_us = record.not_before_us();
  if (record.counted()) {
    ++job->counted_restarts;
    job->counted_restarts_us.push_back(record.at_us());
    // No budget is larger than what can still count.
    if (job->counted_restarts_us.size() > job->policy.restart_max) {
      job->counted_restarts_us.erase(job->counted_restarts_us.begin());
    }
  }
  if (job->generation.root_cause.has_value()) AddEarlier(*job->generation.root_cause, job);
}

// Returns the job that is forgotten for it.
std::string EndJob(const v1::JobEnded& record, const std::string& name, State* state) {
  const auto found = state->jobs.find(name);
  if (found == state->jobs.end() || HasEnded(found->second.phase)) return "";
  JobState* job = &found->second;
  NoteStopped(record.at_us(), job);
  v1::GenerationTimeline* timeline = LastTimeline(job);
  if (timeline != nullptr && job->phase == v1::RUNNING) {
    timeline->set_stopped_us(record.at_us() - job->created_us);
    timeline->set_end_reason("succeeded");
  }
  job->phase = record.verdict().outcome();
  job->verdict = record.verdict();
  job->store = keyspace::Stored();
  state->by_user.Remove(job->user, 0);
  job->ended = ++state->jobs_ended;
  state->by_user.Add(job->user, job->ended);
  state->ended_jobs[job->ended] = name;
  if (state->ended_jobs.size() <= kMaxEndedJobs) return "";
  const auto oldest = state->ended_jobs.find(state->by_user.NextToForget());
  const auto forgotten = state->jobs.find(oldest->second);
  state->by_user.Remove(forgotten->second.user, forgotten->second.ended);
  state->ended_jobs.erase(oldest);
  const std::string its_name = forgotten->first;
  state->jobs.erase(forgotten);
  return its_name;
}

void ApplyToJob(const v1::Record& record, State* state) {
  if (record.body_case() == v1::Record::kJobCreated) {
    const auto [at, is_new] = state->jobs.try_emplace(record.job());
    JobState& job = at->second;
    if (!is_new) state->by_user.Remove(job.user, job.ended);
    if (job.ended != 0) state->ended_jobs.erase(job.ended);
    CreateJob(record.job_created(), state, &job);
    state->by_user.Add(job.user, 0);
    return;
  }
  if (record.body_case() == v1::Record::kJobRestored) {
    return RestoreJob(record.job(), record.job_restored(), state);
  }
  const auto found = state->jobs.find(record.job());
  if (found == state->jobs.end()) return;
  JobState* job = &found->second;
  if (HasEnded(job->phase)) return;
  switch (record.body_case()) {
    case v1::Record::kNodeAdmitted:
      NoteJoined(record.node_admitted().part(), &state->cluster);
      return AdmitNode(record.node_admitted(), job);
    case v1::Record::kNodeRemoved:
      return RemoveNode(record.node_removed(), job);
    case v1::Record::kGenerationFormed:
      return FormGeneration(record.generation_formed(), job);
    case v1::Record::kWorkerRan:
      return RunWorker(record.worker_ran(), job);
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
      if (GenerationOfChange(record) == job->generation.number) job->store.Apply(ChangeOf(record));
      return;
    default:
      return;
  }
}

}  // namespace

std::string ApplyRecord(const v1::Record& record, State* state) {
  if (record.has_job_ended()) return EndJob(record.job_ended(), record.job(), state);
  if (!ApplyToCluster(record, state)) ApplyToJob(record, state);
  return "";
}

std::string DumpState(const State& state) {
  std::string text = absl::StrCat("ended ", state.jobs_ended, "\n");
  const ClusterState& cluster = state.cluster;
  absl::StrAppend(&text, "cluster ", cluster.submitted, " ", cluster.last_part, "\n");
  for (const auto& [name, node] : cluster.nodes) {
    absl::StrAppend(&text, "node ", node.ShortDebugString(), "\n");
  }
  for (const auto& [id, part] : cluster.parts) {
    absl::StrAppend(&text, "part ", part.part.ShortDebugString(), " ", part.taken_back, " ",
                    part.joined, "\n");
  }
  for (const auto& [name, job] : state.jobs) {
    const GenerationState& generation = job.generation;
    absl::StrAppend(&text, "job ", name, " ", v1::JobPhase_Name(job.phase), " restarts ",
                    job.restart_count, " counted ", job.counted_restarts, " times ", job.created_us,
                    " ", job.gathering_us, " ", job.not_before_us, " ", job.last_join_us, " slots ",
                    job.slots, " admissions ", job.admissions, " announced ",
                    job.generations_announced, " bytes ", job.store.bytes, " ended ", job.ended,
                    " user ", job.user, " order ", job.order, " run ", job.run, " request ",
                    job.request_id, " failed starts ", job.failed_starts, "\n",
                    job.spec.ShortDebugString(), "\n", job.timeline.ShortDebugString(), "\n");
    for (const auto& [node, avoided] : job.avoid) {
      absl::StrAppend(&text, "avoids ", avoided.ShortDebugString(), "\n");
    }
    for (const int64_t at_us : job.counted_restarts_us) absl::StrAppend(&text, "at ", at_us, "\n");
    for (const std::string& node : job.expected_nodes)
      absl::StrAppend(&text, "expects ", node, "\n");
    for (const auto& [node_name, node] : job.nodes) {
      absl::StrAppend(&text, "node ", node_name, " ", node.host, " ", node.address, " ", node.slots,
                      " ", node.incarnation, " ", node.wanted_node_rank, " ", node.held_port, " ",
                      node.master_addr, " ", node.master_port, " ", node.admission, " ",
                      absl::FormatDuration(node.adopt_timeout), "\n");
    }
    absl::StrAppend(&text, "generation ", generation.number, " ", generation.master_addr, ":",
                    generation.master_port, " ", generation.restart_count, " ",
                    generation.formed_us, " ", generation.stopping_us, " ", generation.failed_us,
                    " ", generation.started, " ", generation.running, " ", generation.succeeded,
                    " ", generation.rejoin, " ", generation.stop_reason, "\n");
    for (const MemberState& member : generation.members) {
      absl::StrAppend(&text, "member ", member.node, " ", member.first_rank, " ", member.slots, " ",
                      member.succeeded, " ", member.lost, " ", member.cleared, "\n");
    }
    for (const RankState worker : generation.workers) {
      absl::StrAppend(&text, static_cast<int>(worker));
    }
    text += "\n";
    if (generation.root_cause.has_value()) {
      absl::StrAppend(&text, "root ", generation.root_cause->ShortDebugString(), "\n");
    }
    for (const v1::Failure& failure : generation.collateral) {
      absl::StrAppend(&text, "collateral ", failure.ShortDebugString(), "\n");
    }
    for (const v1::Failure& failure : job.earlier) {
      absl::StrAppend(&text, "earlier ", failure.ShortDebugString(), "\n");
    }
    for (const auto& [key, value] : job.store.keys) {
      absl::StrAppend(&text, "key ", key, "=", value, "\n");
    }
    for (const auto& [key, value] : job.store.communicator_ids) {
      absl::StrAppend(&text, "id ", key, "=", value, "\n");
    }
    for (const keyspace::Reply* reply : job.store.answers.All()) {
      absl::StrAppend(&text, "answered ", ToProto(*reply).ShortDebugString(), "\n");
    }
    if (job.verdict.has_value()) absl::StrAppend(&text, job.verdict->ShortDebugString(), "\n");
  }
  return text;
}

}  // namespace cadre
