#include "worker_runtime/store/store_worker.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/keyspace/store_limits.h"
#include "worker_runtime/absl_types.h"

namespace cadre::store {
namespace {

uint64_t RandomId() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

Status CheckKey(const char* what, std::string_view key) {
  if (key.empty() || key.size() > keyspace::kMaxKeyBytes) {
    return InvalidArgumentError(absl::StrCat(what, " has ", key.size(),
                                             " bytes; it must have 1 to ", keyspace::kMaxKeyBytes));
  }
  if (IsUtf8(ToAbsl(key))) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat(what, " is not UTF-8: ", Quoted(ReplaceInvalidUtf8(ToAbsl(key)))));
}

Status CheckValue(std::string_view key, std::string_view value) {
  if (value.size() <= keyspace::kMaxValueBytes) return OkStatus();
  return InvalidArgumentError(absl::StrCat("the value for \"", ToAbsl(key), "\" has ", value.size(),
                                           " bytes; at most ", keyspace::kMaxValueBytes,
                                           " fit into the store"));
}

// Adds the failed call to the message; the code is unchanged.
Status Annotate(const Status& status, const char* call, std::string_view key) {
  if (status.ok()) return status;
  return Status(status.code(), absl::StrCat(call, "(\"", ToAbsl(key), "\"): ", status.message()));
}

Result<std::string> Value(Result<keyspace::Reply> reply, const char* call, std::string_view key) {
  if (!reply.ok()) return Annotate(reply.status(), call, key);
  return std::move(reply->value);
}

}  // namespace

StoreWorker::StoreWorker() : client_(RandomId()) {}

Status StoreWorker::Set(std::string_view key, std::string_view value) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  RETURN_IF_ERROR(CheckValue(key, value));
  return Annotate(Execute(keyspace::Set{std::string(key), std::string(value)}).status(), "Set",
                  key);
}

Result<std::string> StoreWorker::Get(std::string_view key, std::chrono::nanoseconds timeout) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  return Value(Execute(keyspace::Get{std::string(key)}, timeout), "Get", key);
}

Result<int64_t> StoreWorker::Add(std::string_view key, int64_t delta) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  const Result<keyspace::Reply> reply = Execute(keyspace::Add{std::string(key), delta});
  if (!reply.ok()) return Annotate(reply.status(), "Add", key);
  return reply->number;
}

Result<std::string> StoreWorker::CompareAndSet(std::string_view key, std::string_view expected,
                                               std::string_view desired) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  RETURN_IF_ERROR(CheckValue(key, expected));
  RETURN_IF_ERROR(CheckValue(key, desired));
  return Value(Execute(keyspace::CompareAndSet{std::string(key), std::string(expected),
                                               std::string(desired)}),
               "CompareAndSet", key);
}

Status StoreWorker::Delete(std::string_view key) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  return Annotate(Execute(keyspace::Delete{std::string(key)}).status(), "Delete", key);
}

Status StoreWorker::Barrier(std::string_view name, std::chrono::nanoseconds timeout) {
  RETURN_IF_ERROR(CheckKey("a barrier's name", name));
  return Annotate(Execute(keyspace::EnterBarrier{std::string(name)}, timeout).status(), "Barrier",
                  name);
}

Status StoreWorker::PublishCommunicatorId(std::string_view communicator, std::string_view id) {
  RETURN_IF_ERROR(CheckKey("a communicator's name", communicator));
  RETURN_IF_ERROR(CheckValue(communicator, id));
  return Annotate(Execute(keyspace::PublishId{std::string(communicator), std::string(id)}).status(),
                  "PublishCommunicatorId", communicator);
}

Result<std::string> StoreWorker::CommunicatorId(std::string_view communicator,
                                                std::chrono::nanoseconds timeout) {
  RETURN_IF_ERROR(CheckKey("a communicator's name", communicator));
  return Value(Execute(keyspace::GetId{std::string(communicator)}, timeout), "CommunicatorId",
               communicator);
}

Result<keyspace::Reply> StoreWorker::Execute(keyspace::Operation operation,
                                             std::chrono::nanoseconds wait) {
  keyspace::Request request;
  request.client = client_;
  request.id = NextId();
  request.rank = place_.rank;
  const absl::Duration limit =
      std::clamp(absl::FromChrono(wait), absl::ZeroDuration(), keyspace::kMaxWait);
  request.wait_ms =
      static_cast<uint32_t>(absl::ToInt64Milliseconds(absl::Ceil(limit, absl::Milliseconds(1))));
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
