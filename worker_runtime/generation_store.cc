#include "worker_runtime/generation_store.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "worker_runtime/store_limits.h"

namespace cadre {
namespace {

// As many of those who are missing as an error names.
constexpr size_t kMaxNamed = 3;

// Keys of its own, which no user's key can be.
std::string IdKey(absl::string_view communicator) {
  return absl::StrCat(absl::string_view("\0id:", 4), communicator);
}

}  // namespace

absl::Status GenerationStore::Set(absl::string_view key, absl::string_view value) {
  const Lock lock(mutex_);
  return Write(key, value);
}

absl::StatusOr<std::string> GenerationStore::Get(absl::string_view key, absl::Duration timeout) {
  const std::string name(key);
  Lock lock(mutex_);
  RETURN_IF_ERROR(Check(key, ""));
  const bool there = Wait(lock, timeout, [&] { return values_.count(name) > 0; });
  if (!end_.ok()) return end_;
  if (there) return values_[name];
  return timeout > absl::ZeroDuration()
             ? absl::DeadlineExceededError(absl::StrCat("no key \"", key, "\" came"))
             : absl::NotFoundError(absl::StrCat("no key \"", key, "\""));
}

absl::StatusOr<int64_t> GenerationStore::Add(absl::string_view key, int64_t delta) {
  const Lock lock(mutex_);
  RETURN_IF_ERROR(Check(key, ""));
  const auto found = values_.find(std::string(key));
  int64_t number = 0;
  if (found != values_.end() && !absl::SimpleAtoi(found->second, &number)) {
    return absl::FailedPreconditionError(absl::StrCat("\"", key, "\" holds no number"));
  }
  if (__builtin_add_overflow(number, delta, &number)) {
    return absl::FailedPreconditionError(absl::StrCat("\"", key, "\" would exceed 64 bits"));
  }
  RETURN_IF_ERROR(Write(key, absl::StrCat(number)));
  return number;
}

absl::StatusOr<std::string> GenerationStore::CompareAndSet(absl::string_view key,
                                                           absl::string_view expected,
                                                           absl::string_view desired) {
  const Lock lock(mutex_);
  RETURN_IF_ERROR(Check(key, desired));
  const auto found = values_.find(std::string(key));
  if ((found == values_.end() ? "" : found->second) != expected) {
    return absl::FailedPreconditionError(absl::StrCat("\"", key, "\" holds another value"));
  }
  RETURN_IF_ERROR(Write(key, desired));
  return std::string(desired);
}

absl::Status GenerationStore::Delete(absl::string_view key) {
  const Lock lock(mutex_);
  RETURN_IF_ERROR(Check(key, ""));
  const auto found = values_.find(std::string(key));
  if (found == values_.end()) return absl::OkStatus();
  bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  return absl::OkStatus();
}

absl::Status GenerationStore::Barrier(int rank, absl::string_view name, absl::Duration timeout) {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Check(name, ""));
  if (barriers_.size() >= kMaxGenerationKeys && barriers_.count(std::string(name)) == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", kMaxGenerationKeys, " barriers already"));
  }
  BarrierState& barrier = barriers_[std::string(name)];
  const uint64_t round = barrier.round;
  barrier.entered.insert(rank);
  if (static_cast<int>(barrier.entered.size()) == world_size_) {
    barrier.entered.clear();
    ++barrier.round;
    changed_.notify_all();
    return absl::OkStatus();
  }
  if (Wait(lock, timeout, [&] { return barrier.round != round; }) && barrier.round != round) {
    return absl::OkStatus();
  }
  if (!end_.ok()) return end_;
  const std::string missing = Missing(barrier.entered);
  barrier.entered.erase(rank);
  return absl::DeadlineExceededError(
      absl::StrCat("barrier \"", name, "\" waits for rank ", missing));
}

absl::Status GenerationStore::PublishCommunicatorId(absl::string_view communicator,
                                                    absl::string_view id) {
  const Lock lock(mutex_);
  RETURN_IF_ERROR(Check(communicator, id));
  const auto found = values_.find(IdKey(communicator));
  if (found == values_.end()) return Write(IdKey(communicator), id);
  if (found->second == id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("communicator \"", communicator, "\" has another id already"));
}

absl::StatusOr<std::string> GenerationStore::CommunicatorId(absl::string_view communicator,
                                                            absl::Duration timeout) {
  absl::StatusOr<std::string> id = Get(IdKey(communicator), timeout);
  if (!absl::IsDeadlineExceeded(id.status())) return id;
  return absl::DeadlineExceededError(
      absl::StrCat("no id of communicator \"", communicator, "\" came"));
}

void GenerationStore::End(const absl::Status& why) {
  const Lock lock(mutex_);
  end_ = why;
  changed_.notify_all();
}

absl::Status GenerationStore::Check(absl::string_view key, absl::string_view value) const {
  if (!end_.ok()) return end_;
  if (!key.empty() && key.size() <= kMaxStoreKeyBytes + IdKey("").size() &&
      value.size() <= kMaxStoreValueBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a key of ", key.size(), " and a value of ",
                                                 value.size(), " bytes: at most ",
                                                 kMaxStoreKeyBytes, " and ", kMaxStoreValueBytes));
}

absl::Status GenerationStore::Write(absl::string_view key, absl::string_view value) {
  RETURN_IF_ERROR(Check(key, value));
  const auto found = values_.find(std::string(key));
  const bool is_new = found == values_.end();
  const size_t bytes =
      bytes_ + value.size() + (is_new ? key.size() : 0) - (is_new ? 0 : found->second.size());
  if ((is_new && values_.size() >= kMaxGenerationKeys) || bytes > kMaxGenerationBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the store holds ", values_.size(),
                                                     " keys of ", bytes_ >> 20,
                                                     " MiB already, and takes no more"));
  }
  values_[std::string(key)] = std::string(value);
  bytes_ = bytes;
  changed_.notify_all();
  return absl::OkStatus();
}

std::string GenerationStore::Missing(const std::set<int>& entered) const {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_ && missing.size() < kMaxNamed; ++rank) {
    if (entered.count(rank) == 0) missing.push_back(rank);
  }
  return absl::StrJoin(missing, ", ");
}

bool GenerationStore::Wait(Lock& lock, absl::Duration timeout,
                           const std::function<bool()>& answered) {
  const absl::Duration bounded = std::min(std::max(timeout, absl::ZeroDuration()), kMaxStoreWait);
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(bounded);
  return changed_.wait_until(lock, deadline, [&] { return !end_.ok() || answered(); });
}

}  // namespace cadre
