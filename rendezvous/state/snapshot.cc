#include "rendezvous/state/snapshot.h"

#include <algorithm>
#include <utility>

#include "base/duration.h"
#include "rendezvous/state/store_records.h"

namespace cadre {
namespace {

v1::NodeRestored NodeToRecord(const NodeState& node) {
  v1::NodeRestored restored;
  v1::NodeAdmitted* admitted = restored.mutable_node();
  admitted->set_node(node.name);
  admitted->set_host(node.host);
  admitted->set_address(node.address);
  admitted->set_slots(node.slots);
  admitted->set_incarnation(node.incarnation);
  admitted->set_wanted_node_rank(node.wanted_node_rank);
  admitted->set_held_port(node.held_port);
  admitted->set_master_addr(node.master_addr);
  admitted->set_master_port(node.master_port);
  if (node.adopt_timeout > absl::ZeroDuration()) {
    *admitted->mutable_adopt_timeout() = ToProto(node.adopt_timeout);
  }
  restored.set_admission(node.admission);
  return restored;
}

NodeState NodeFromRecord(const v1::NodeRestored& restored) {
  const v1::NodeAdmitted& admitted = restored.node();
  NodeState node;
  node.name = admitted.node();
  node.host = admitted.host();
  node.address = admitted.address();
  node.slots = admitted.slots();
  node.incarnation = admitted.incarnation();
  node.wanted_node_rank = admitted.wanted_node_rank();
  node.held_port = admitted.held_port();
  node.master_addr = admitted.master_addr();
  node.master_port = admitted.master_port();
  node.adopt_timeout = FromProto(admitted.adopt_timeout());
  node.admission = restored.admission();
  return node;
}

void GenerationToRecord(const GenerationState& generation, v1::GenerationRestored* restored) {
  restored->set_number(generation.number);
  for (const MemberState& member : generation.members) {
    v1::MemberRestored* to = restored->add_members();
    to->mutable_member()->set_node(member.node);
    to->mutable_member()->set_first_rank(member.first_rank);
    to->mutable_member()->set_slots(member.slots);
    to->set_succeeded(member.succeeded);
    to->set_lost(member.lost);
    to->set_cleared(member.cleared);
  }
  std::string workers;
  for (const RankState phase : generation.workers) workers += static_cast<char>(phase);
  restored->set_workers(std::move(workers));
  restored->set_master_addr(generation.master_addr);
  restored->set_master_port(generation.master_port);
  restored->set_restart_count(generation.restart_count);
  restored->set_formed_us(generation.formed_us);
  restored->set_stopping_us(generation.stopping_us);
  restored->set_failed_us(generation.failed_us);
  restored->set_stop_reason(generation.stop_reason);
  restored->set_rejoin(generation.rejoin);
  if (generation.root_cause.has_value()) *restored->mutable_root_cause() = *generation.root_cause;
  for (const v1::Failure& failure : generation.collateral) *restored->add_collateral() = failure;
}

GenerationState GenerationFromRecord(const v1::GenerationRestored& restored) {
  GenerationState generation;
  generation.number = restored.number();
  for (const v1::MemberRestored& from : restored.members()) {
    MemberState member;
    member.node = from.member().node();
    member.first_rank = from.member().first_rank();
    member.slots = from.member().slots();
    member.succeeded = from.succeeded();
    member.lost = from.lost();
    member.cleared = from.cleared();
    generation.nodes_busy += !member.lost && !member.cleared;
    generation.node_ranks[member.node] = generation.members.size();
    generation.members.push_back(std::move(member));
  }
  for (const char phase : restored.workers()) {
    const auto worker = static_cast<RankState>(phase);
    generation.workers.push_back(worker);
    generation.started += worker != RankState::kAssigned;
    generation.running += worker == RankState::kRunning;
    generation.succeeded += worker == RankState::kSucceeded;
  }
  generation.master_addr = restored.master_addr();
  generation.master_port = restored.master_port();
  generation.restart_count = restored.restart_count();
  generation.formed_us = restored.formed_us();
  generation.stopping_us = restored.stopping_us();
  generation.failed_us = restored.failed_us();
  generation.stop_reason = restored.stop_reason();
  generation.rejoin = restored.rejoin();
  if (restored.has_root_cause()) generation.root_cause = restored.root_cause();
  generation.collateral.assign(restored.collateral().begin(), restored.collateral().end());
  return generation;
}

v1::JobRestored JobToRecord(const JobState& job) {
  v1::JobRestored restored;
  *restored.mutable_spec() = job.spec;
  restored.set_phase(job.phase);
  for (const auto& [name, node] : job.nodes) *restored.add_nodes() = NodeToRecord(node);
  *restored.mutable_expected_nodes() = {job.expected_nodes.begin(), job.expected_nodes.end()};
  restored.set_admissions(job.admissions);
  GenerationToRecord(job.generation, restored.mutable_generation());
  restored.set_restart_count(job.restart_count);
  restored.set_counted_restarts(job.counted_restarts);
  *restored.mutable_counted_restarts_us() = {job.counted_restarts_us.begin(),
                                             job.counted_restarts_us.end()};
  restored.set_created_us(job.created_us);
  restored.set_gathering_us(job.gathering_us);
  restored.set_not_before_us(job.not_before_us);
  restored.set_last_join_us(job.last_join_us);
  restored.set_generations_announced(job.generations_announced);
  *restored.mutable_earlier() = {job.earlier.begin(), job.earlier.end()};
  *restored.mutable_timeline() = job.timeline;
  if (job.verdict.has_value()) *restored.mutable_verdict() = *job.verdict;
  restored.set_ended(job.ended);
  restored.set_user(job.user);
  restored.set_run(job.run);
  restored.set_order(job.order);
  restored.set_request_id(job.request_id);
  for (const auto& [name, avoided] : job.avoid) *restored.add_avoid() = avoided;
  restored.set_failed_starts(job.failed_starts);
  return restored;
}

void AddKeys(const std::string& name, const JobState& job, std::vector<v1::Record>* records) {
  const uint64_t generation = job.generation.number;
  const auto add = [&](const keyspace::Change& change) {
    records->push_back(RecordOf(generation, change));
    records->back().set_job(name);
  };
  for (const auto& [key, value] : job.store.keys) add({keyspace::KeyWritten{key, value}, {}});
  for (const auto& [name, id] : job.store.communicator_ids) {
    add({keyspace::IdPublished{name, id}, {}});
  }
  keyspace::Change answered;
  for (const keyspace::Reply* reply : job.store.answers.All()) {
    answered.answers.push_back(*reply);
    if (answered.answers.size() < kAnswersPerRecord) continue;
    add(answered);
    answered.answers.clear();
  }
  if (!answered.answers.empty()) add(answered);
}

v1::ClusterRestored ClusterToRecord(const ClusterState& cluster) {
  v1::ClusterRestored restored;
  for (const auto& [name, node] : cluster.nodes) *restored.add_nodes() = node;
  for (const auto& [id, part] : cluster.parts) {
    *restored.add_parts() = part.part;
    if (part.taken_back) restored.add_taken_back(id);
    if (part.joined) restored.add_joined(id);
  }
  restored.set_last_part(cluster.last_part);
  restored.set_submitted(cluster.submitted);
  return restored;
}

}  // namespace

void RestoreCluster(const v1::ClusterRestored& record, ClusterState* cluster) {
  *cluster = ClusterState();
  for (const v1::ClusterNodeStatus& node : record.nodes()) cluster->nodes[node.name()] = node;
  for (const v1::Part& part : record.parts()) cluster->parts[part.id()].part = part;
  for (const uint64_t id : record.taken_back()) cluster->parts[id].taken_back = true;
  for (const uint64_t id : record.joined()) cluster->parts[id].joined = true;
  cluster->last_part = record.last_part();
  cluster->submitted = record.submitted();
}

std::vector<v1::Record> SnapshotOf(const State& state) {
  std::vector<v1::Record> records;
  if (state.cluster.last_part != 0 || state.cluster.submitted != 0 ||
      !state.cluster.nodes.empty()) {
    *records.emplace_back().mutable_cluster_restored() = ClusterToRecord(state.cluster);
  }
  for (const auto& [name, job] : state.jobs) {
    v1::Record& record = records.emplace_back();
    record.set_job(name);
    *record.mutable_job_restored() = JobToRecord(job);
    record.mutable_job_restored()->set_jobs_ended(state.jobs_ended);
    AddKeys(name, job, &records);
  }
  return records;
}

void RestoreJob(const std::string& name, const v1::JobRestored& record, State* state) {
  JobState job;
  job.spec = record.spec();
  job.policy = PolicyOf(record.spec());
  job.phase = record.phase();
  for (const v1::NodeRestored& restored : record.nodes()) {
    NodeState node = NodeFromRecord(restored);
    job.slots += node.slots;
    job.nodes[node.name] = std::move(node);
  }
  job.expected_nodes.assign(record.expected_nodes().begin(), record.expected_nodes().end());
  job.admissions = record.admissions();
  job.generation = GenerationFromRecord(record.generation());
  job.restart_count = record.restart_count();
  job.counted_restarts = record.counted_restarts();
  job.counted_restarts_us.assign(record.counted_restarts_us().begin(),
                                 record.counted_restarts_us().end());
  job.created_us = record.created_us();
  job.gathering_us = record.gathering_us();
  job.not_before_us = record.not_before_us();
  job.last_join_us = record.last_join_us();
  job.generations_announced = record.generations_announced();
  job.earlier.assign(record.earlier().begin(), record.earlier().end());
  job.timeline = record.timeline();
  if (record.has_verdict()) job.verdict = record.verdict();
  job.ended = record.ended();
  job.user = record.user();
  job.run = record.run();
  job.order = record.order();
  job.request_id = record.request_id();
  for (const v1::AvoidedNode& avoided : record.avoid()) job.avoid[avoided.node()] = avoided;
  job.failed_starts = record.failed_starts();
  const auto before = state->jobs.find(name);
  if (before != state->jobs.end()) {
    state->by_user.Remove(before->second.user, before->second.ended);
    state->ended_jobs.erase(before->second.ended);
  }
  if (job.ended != 0) state->ended_jobs[job.ended] = name;
  state->by_user.Add(job.user, job.ended);
  state->jobs_ended = std::max<uint64_t>(state->jobs_ended, record.jobs_ended());
  state->jobs[name] = std::move(job);
}

}  // namespace cadre
