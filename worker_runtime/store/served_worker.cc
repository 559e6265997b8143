#include "worker_runtime/store/served_worker.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "cadre/status.h"
#include "worker_runtime/sockets/endpoint.h"

namespace cadre::store {

ServedWorker::ServedWorker(const StoreAddress& at, std::string server, const WorkerPlace& place)
    : at_(at),
      server_(std::move(server)),
      rank_(place.rank),
      calls_([this] { return Enter(); }, std::nullopt) {
  MoveTo(place);
}

Result<Entry> ServedWorker::Enter() {
  ASSIGN_OR_RETURN(Entry entry, EnterStore(at_, rank_));
  const std::lock_guard<std::mutex> lock(mutex_);
  local_address_ = sockets::AddressOf(entry.socket.get());
  return entry;
}

std::string ServedWorker::local_address() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return local_address_;
}

Result<keyspace::Reply> ServedWorker::Send(keyspace::Request request) {
  const absl::Duration limit = absl::Milliseconds(request.wait_ms) + kCallMargin;
  Result<rpc::WorkerReply> reply = calls_.Call(CallOf(std::move(request)), limit);
  if (reply.ok()) return ReplyOf(*std::move(reply));
  const Status status = reply.status();
  const std::string who = absl::StrCat(server_, ", which serves the store at ", at_.endpoint, ", ");
  if (status.code() == StatusCode::kUnavailable) {
    return UnavailableError(absl::StrCat(who, "cannot be reached: ", status.message()));
  }
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return DeadlineExceededError(
      absl::StrCat(who, "did not answer within ", absl::FormatDuration(limit)));
}

}  // namespace cadre::store
