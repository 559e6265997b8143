#include "worker_runtime/store/store_worker.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rendezvous/keyspace/limits.h"

namespace cadre::store {
namespace {

uint64_t RandomId() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

absl::Status CheckKey(absl::string_view what, absl::string_view key) {
  if (!key.empty() && key.size() <= keyspace::kMaxKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " has ", key.size(), " bytes; it must have 1 to ", keyspace::kMaxKeyBytes));
}

absl::Status CheckValue(absl::string_view key, absl::string_view value) {
  if (value.size() <= keyspace::kMaxValueBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the value for \"", key, "\" has ", value.size(),
                                                 " bytes; at most ", keyspace::kMaxValueBytes,
                                                 " fit into the store"));
}

// Says which call failed; the code stays.
absl::Status Annotate(const absl::Status& status, absl::string_view call, absl::string_view key) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(call, "(\"", key, "\"): ", status.message()));
}

absl::StatusOr<std::string> Value(absl::StatusOr<keyspace::Reply> reply, absl::string_view call,
                                  absl::string_view key) {
  if (!reply.ok()) return Annotate(reply.status(), call, key);
  return std::move(reply->value);
}

}  // namespace

StoreWorker::StoreWorker() : client_(RandomId()) {}

absl::Status StoreWorker::Set(absl::string_view key, absl::string_view value) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  RETURN_IF_ERROR(CheckValue(key, value));
  return Annotate(Execute(keyspace::Set{std::string(key), std::string(value)}).status(), "Set",
                  key);
}

absl::StatusOr<std::string> StoreWorker::Get(absl::string_view key, absl::Duration timeout) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  return Value(Execute(keyspace::Get{std::string(key)}, timeout), "Get", key);
}

absl::StatusOr<int64_t> StoreWorker::Add(absl::string_view key, int64_t delta) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  const absl::StatusOr<keyspace::Reply> reply = Execute(keyspace::Add{std::string(key), delta});
  if (!reply.ok()) return Annotate(reply.status(), "Add", key);
  return reply->number;
}

absl::StatusOr<std::string> StoreWorker::CompareAndSet(absl::string_view key,
                                                       absl::string_view expected,
                                                       absl::string_view desired) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  RETURN_IF_ERROR(CheckValue(key, expected));
  RETURN_IF_ERROR(CheckValue(key, desired));
  return Value(Execute(keyspace::CompareAndSet{std::string(key), std::string(expected),
                                               std::string(desired)}),
               "CompareAndSet", key);
}

absl::Status StoreWorker::Delete(absl::string_view key) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  return Annotate(Execute(keyspace::Delete{std::string(key)}).status(), "Delete", key);
}

absl::Status StoreWorker::Barrier(absl::string_view name, absl::Duration timeout) {
  RETURN_IF_ERROR(CheckKey("a barrier's name", name));
  return Annotate(Execute(keyspace::EnterBarrier{std::string(name)}, timeout).status(), "Barrier",
                  name);
}

absl::Status StoreWorker::PublishCommunicatorId(absl::string_view communicator,
                                                absl::string_view id) {
  RETURN_IF_ERROR(CheckKey("a communicator's name", communicator));
  RETURN_IF_ERROR(CheckValue(communicator, id));
  return Annotate(Execute(keyspace::PublishId{std::string(communicator), std::string(id)}).status(),
                  "PublishCommunicatorId", communicator);
}

absl::StatusOr<std::string> StoreWorker::CommunicatorId(absl::string_view communicator,
                                                        absl::Duration timeout) {
  RETURN_IF_ERROR(CheckKey("a communicator's name", communicator));
  return Value(Execute(keyspace::GetId{std::string(communicator)}, timeout), "CommunicatorId",
               communicator);
}

absl::StatusOr<keyspace::Reply> StoreWorker::Execute(keyspace::Operation operation,
                                                     absl::Duration wait) {
  keyspace::Request request;
  request.client = client_;
  request.id = NextId();
  request.rank = place_.rank;
  wait = std::min(std::max(wait, absl::ZeroDuration()), keyspace::kMaxWait);
  request.wait_ms =
      static_cast<uint32_t>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))));
  request.operation = std::move(operation);
  ASSIGN_OR_RETURN(keyspace::Reply reply, Send(std::move(request)));
  RETURN_IF_ERROR(reply.status());
  return reply;
}

rpc::WorkerCall StoreWorker::CallOf(keyspace::Request request) const {
  return {request.id, rpc::Store{place_.job, place_.generation, request.client, request.rank,
                                 request.wait_ms, std::move(request.operation)}};
}

keyspace::Reply StoreWorker::ReplyOf(rpc::WorkerReply reply) {
  keyspace::Reply answer;
  answer.id = reply.id;
  answer.code = reply.code;
  answer.message = std::move(reply.message);
  if (auto* result = std::get_if<rpc::StoreResult>(&reply.what)) {
    answer.value = std::move(result->value);
    answer.number = result->number;
  }
  return answer;
}

}  // namespace cadre::store
