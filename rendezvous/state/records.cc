// Converts the state, and changes in the stores of jobs, to records and back.
#include "rendezvous/state/records.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::state {
namespace {

saved::State ClusterPiece(const State& state) {
  saved::State piece;
  *piece.mutable_counters() = state.counters;
  for (const auto& [name, node] : state.cluster.nodes) *piece.add_nodes() = node;
  for (const auto& [id, part] : state.cluster.allocations) *piece.add_parts() = part;
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

namespace {

void Put(uint64_t generation, const keyspace::Answered&, v1::Record* record) {
  record->mutable_store_answered()->set_generation(generation);
}

void Put(uint64_t generation, keyspace::KeyWritten& change, v1::Record* record) {
  v1::KeyWritten* written = record->mutable_key_written();
  written->set_generation(generation);
  written->set_key(std::move(change.key));
  written->set_value(std::move(change.value));
}

void Put(uint64_t generation, keyspace::KeyErased& change, v1::Record* record) {
  record->mutable_key_erased()->set_generation(generation);
  record->mutable_key_erased()->set_key(std::move(change.key));
}

void Put(uint64_t generation, keyspace::IdPublished& change, v1::Record* record) {
  v1::CommunicatorIdPublished* published = record->mutable_communicator_id_published();
  published->set_generation(generation);
  published->set_communicator(std::move(change.communicator));
  published->set_id(std::move(change.id));
}

std::optional<keyspace::Operation> OperationOf(const v1::StoreRequest& request) {
  switch (request.operation_case()) {
    case v1::StoreRequest::kSet:
      return keyspace::Set{request.set().key(), request.set().value()};
    case v1::StoreRequest::kGet:
      return keyspace::Get{request.get().key()};
    case v1::StoreRequest::kAdd:
      return keyspace::Add{request.add().key(), request.add().delta()};
    case v1::StoreRequest::kCompareAndSet: {
      const v1::CompareAndSetKey& swap = request.compare_and_set();
      return keyspace::CompareAndSet{swap.key(), swap.expected(), swap.desired()};
    }
    case v1::StoreRequest::kDelete:
      return keyspace::Delete{request.delete_().key()};
    case v1::StoreRequest::kBarrier:
      return keyspace::EnterBarrier{request.barrier().name(), request.barrier().size()};
    case v1::StoreRequest::kPublishId:
      return keyspace::PublishId{request.publish_id().communicator(), request.publish_id().id()};
    case v1::StoreRequest::kGetId:
      return keyspace::GetId{request.get_id().communicator()};
    case v1::StoreRequest::OPERATION_NOT_SET:
      break;
  }
  return std::nullopt;
}

}  // namespace

v1::Record RecordOf(uint64_t generation, keyspace::Change change) {
  v1::Record record;
  std::visit([&](auto& what) { Put(generation, what, &record); }, change.what);
  for (const keyspace::Reply& reply : change.answers) *record.add_answers() = ToProto(reply);
  return record;
}

keyspace::Change ChangeOf(const v1::Record& record) {
  keyspace::Change change;
  if (record.has_key_written()) {
    change.what = keyspace::KeyWritten{record.key_written().key(), record.key_written().value()};
  } else if (record.has_key_erased()) {
    change.what = keyspace::KeyErased{record.key_erased().key()};
  } else if (record.has_communicator_id_published()) {
    const v1::CommunicatorIdPublished& published = record.communicator_id_published();
    change.what = keyspace::IdPublished{published.communicator(), published.id()};
  }
  for (const v1::StoreReply& reply : record.answers()) {
    change.answers.push_back(FromProto(reply));
  }
  return change;
}

std::optional<uint64_t> GenerationOfChange(const v1::Record& record) {
  switch (record.body_case()) {
    case v1::Record::kKeyWritten:
      return record.key_written().generation();
    case v1::Record::kKeyErased:
      return record.key_erased().generation();
    case v1::Record::kCommunicatorIdPublished:
      return record.communicator_id_published().generation();
    case v1::Record::kStoreAnswered:
      return record.store_answered().generation();
    default:
      return std::nullopt;
  }
}

v1::StoreReply ToProto(const keyspace::Reply& reply) {
  v1::StoreReply message;
  message.set_client(reply.client);
  message.set_request_id(reply.id);
  message.set_code(static_cast<int>(reply.code));
  // Setting a field allocates a string even where that is empty, and most answers have neither.
  if (!reply.message.empty()) message.set_message(reply.message);
  if (!reply.value.empty()) message.set_value(reply.value);
  message.set_number(reply.number);
  return message;
}

keyspace::Reply FromProto(const v1::StoreReply& message) {
  keyspace::Reply reply;
  reply.client = message.client();
  reply.id = message.request_id();
  reply.code = static_cast<absl::StatusCode>(message.code());
  reply.message = message.message();
  reply.value = message.value();
  reply.number = message.number();
  return reply;
}

std::optional<keyspace::Request> FromProto(const v1::StoreRequest& message) {
  std::optional<keyspace::Operation> operation = OperationOf(message);
  if (!operation.has_value()) return std::nullopt;
  keyspace::Request request;
  request.client = message.client();
  request.id = message.request_id();
  request.rank = message.rank();
  request.wait_ms = message.wait_ms();
  request.operation = *std::move(operation);
  return request;
}

}  // namespace cadre::state
