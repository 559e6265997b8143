#include "rendezvous/state/store_records.h"

#include <utility>

namespace cadre::state {
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
