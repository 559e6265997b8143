#include "rendezvous/state/snapshot.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/state/store_records.h"

namespace cadre::state {
namespace {

saved::State ClusterPiece(const State& state) {
  saved::State piece;
  *piece.mutable_counters() = state.counters;
  for (const auto& [name, node] : state.cluster.nodes) *piece.add_nodes() = node;
  for (const auto& [id, part] : state.cluster.parts) *piece.add_parts() = part;
  return piece;
}

saved::State JobPiece(const Job& job) {
  saved::State piece;
  saved::WholeJob* whole = piece.add_jobs();
  *whole->mutable_job() = job.saved;
  for (const auto& [name, node] : job.nodes) *whole->add_nodes() = node;
  *whole->mutable_generation() = job.generation.saved;
  return piece;
}

void AddKeys(const std::string& name, const Job& job, const std::function<void(v1::Record)>& take) {
  const auto add = [&](keyspace::Change change) {
    v1::Record record = RecordOf(job.generation.number(), std::move(change));
    record.set_job(name);
    take(std::move(record));
  };
  for (const auto& [key, value] : job.store.keys) add({keyspace::KeyWritten{key, value}, {}});
  for (const auto& [communicator, id] : job.store.communicator_ids) {
    add({keyspace::IdPublished{communicator, id}, {}});
  }
  keyspace::Change answered;
  for (const keyspace::Reply* reply : job.store.answers.All()) {
    answered.answers.push_back(*reply);
    if (answered.answers.size() < kAnswersPerRecord) continue;
    add(std::exchange(answered, {}));
  }
  if (!answered.answers.empty()) add(std::move(answered));
}

}  // namespace

void ForEachOfSnapshot(const State& state, const std::function<void(v1::Record)>& take) {
  v1::Record cluster;
  *cluster.mutable_snapshot() = ClusterPiece(state);
  take(std::move(cluster));
  for (const auto& [name, job] : state.jobs) {
    v1::Record whole;
    whole.set_job(name);
    *whole.mutable_snapshot() = JobPiece(job);
    take(std::move(whole));
    AddKeys(name, job, take);
  }
}

std::vector<v1::Record> SnapshotOf(const State& state) {
  std::vector<v1::Record> records;
  ForEachOfSnapshot(state, [&records](v1::Record record) { records.push_back(std::move(record)); });
  return records;
}

std::string TextOf(const State& state) {
  std::string text;
  for (const v1::Record& record : SnapshotOf(state)) {
    absl::StrAppend(&text, record.ShortDebugString(), "\n");
  }
  for (const auto& [name, job] : state.jobs) {
    const Generation& generation = job.generation;
    absl::StrAppend(&text, name, " has ", job.slots, " slots, ", job.store.bytes, " bytes, ",
                    generation.nodes_busy, " busy nodes; of its workers ", generation.started,
                    " started, ", generation.running, " run, ", generation.succeeded,
                    " succeeded\n");
  }
  return text;
}

}  // namespace cadre::state
