#include "worker_runtime/store_worker.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/store_limits.h"

namespace cadre {
namespace {

uint64_t RandomId() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

absl::Status CheckKey(absl::string_view what, absl::string_view key) {
  if (!key.empty() && key.size() <= kMaxStoreKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", key.size(), " bytes; it must have 1 to ", kMaxStoreKeyBytes));
}

absl::Status CheckValue(absl::string_view key, absl::string_view value) {
  if (value.size() <= kMaxStoreValueBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the value for \"", key, "\" has ", value.size(),
                                                 " bytes; at most ", kMaxStoreValueBytes,
                                                 " fit into the store"));
}

// Says which call failed; the code stays.
absl::Status Annotate(const absl::Status& status, absl::string_view call, absl::string_view key) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(call, "(\"", key, "\"): ", status.message()));
}

absl::StatusOr<std::string> Value(absl::StatusOr<v1::StoreReply> reply, absl::string_view call,
                                  absl::string_view key) {
  if (!reply.ok()) return Annotate(reply.status(), call, key);
  return std::move(*reply->mutable_value());
}

}  // namespace

StoreWorker::StoreWorker() : client_(RandomId()) {}

absl::Status StoreWorker::Set(absl::string_view key, absl::string_view value) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  RETURN_IF_ERROR(CheckValue(key, value));
  v1::StoreRequest request;
  request.mutable_set()->set_key(std::string(key));
  request.mutable_set()->set_value(std::string(value));
  return Annotate(Execute(std::move(request)).status(), "Set", key);
}

absl::StatusOr<std::string> StoreWorker::Get(absl::string_view key, absl::Duration timeout) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  v1::StoreRequest request;
  request.mutable_get()->set_key(std::string(key));
  return Value(Execute(std::move(request), timeout), "Get", key);
}

absl::StatusOr<int64_t> StoreWorker::Add(absl::string_view key, int64_t delta) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  v1::StoreRequest request;
  request.mutable_add()->set_key(std::string(key));
  request.mutable_add()->set_delta(delta);
  const absl::StatusOr<v1::StoreReply> reply = Execute(std::move(request));
  if (!reply.ok()) return Annotate(reply.status(), "Add", key);
  return reply->number();
}

absl::StatusOr<std::string> StoreWorker::CompareAndSet(absl::string_view key,
                                                       absl::string_view expected,
                                                       absl::string_view desired) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  RETURN_IF_ERROR(CheckValue(key, expected));
  RETURN_IF_ERROR(CheckValue(key, desired));
  v1::StoreRequest request;
  request.mutable_compare_and_set()->set_key(std::string(key));
  request.mutable_compare_and_set()->set_expected(std::string(expected));
  request.mutable_compare_and_set()->set_desired(std::string(desired));
  return Value(Execute(std::move(request)), "CompareAndSet", key);
}

absl::Status StoreWorker::Delete(absl::string_view key) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  v1::StoreRequest request;
  request.mutable_delete_()->set_key(std::string(key));
  return Annotate(Execute(std::move(request)).status(), "Delete", key);
}

absl::Status StoreWorker::Barrier(absl::string_view name, absl::Duration timeout) {
  RETURN_IF_ERROR(CheckKey("a barrier's name", name));
  v1::StoreRequest request;
  request.mutable_barrier()->set_name(std::string(name));
  return Annotate(Execute(std::move(request), timeout).status(), "Barrier", name);
}

absl::Status StoreWorker::PublishCommunicatorId(absl::string_view communicator,
                                                absl::string_view id) {
  RETURN_IF_ERROR(CheckKey("a communicator's name", communicator));
  RETURN_IF_ERROR(CheckValue(communicator, id));
  v1::StoreRequest request;
  request.mutable_publish_id()->set_communicator(std::string(communicator));
  request.mutable_publish_id()->set_id(std::string(id));
  return Annotate(Execute(std::move(request)).status(), "PublishCommunicatorId", communicator);
}

absl::StatusOr<std::string> StoreWorker::CommunicatorId(absl::string_view communicator,
                                                        absl::Duration timeout) {
  RETURN_IF_ERROR(CheckKey("a communicator's name", communicator));
  v1::StoreRequest request;
  request.mutable_get_id()->set_communicator(std::string(communicator));
  return Value(Execute(std::move(request), timeout), "CommunicatorId", communicator);
}

absl::StatusOr<v1::StoreReply> StoreWorker::Execute(v1::StoreRequest request, absl::Duration wait) {
  request.set_job(place_.job);
  request.set_generation(place_.generation);
  request.set_rank(place_.rank);
  request.set_client(client_);
  request.set_request_id(next_request_id_++);
  wait = std::min(std::max(wait, absl::ZeroDuration()), kMaxStoreWait);
  request.set_wait_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)))));
  v1::StoreReply reply;
  RETURN_IF_ERROR(Send(std::move(request), &reply));
  return reply;
}

}  // namespace cadre
