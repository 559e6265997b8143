#include "rendezvous/service/caller_loads.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace cadre::service {
namespace {

constexpr absl::Duration kSayAgain = absl::Minutes(1);
// Callers that are remembered for that.
constexpr size_t kSaidMax = 256;

bool IsLimited(const Bearer& bearer) { return bearer.kind != Bearer::Kind::kAdministrator; }

}  // namespace

std::string CallerText(const Bearer& bearer) {
  switch (bearer.kind) {
    case Bearer::Kind::kUser:
      return absl::StrCat("user ", bearer.user);
    case Bearer::Kind::kPart:
      return absl::StrCat("the launchers of job ", bearer.job);
    case Bearer::Kind::kReader:
      return "the read-only tokens";
    case Bearer::Kind::kAdministrator:
      break;
  }
  return "administrators";
}

absl::Status CallerLoads::BeginCall(const Bearer& bearer) {
  if (!IsLimited(bearer)) return absl::OkStatus();
  const std::string caller = CallerText(bearer);
  const absl::MutexLock lock(&mutex_);
  Load& load = loads_[caller];
  if (load.calls < limits_.calls) {
    ++load.calls;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(caller, ": ", limits_.calls,
                   " calls are under way, which is the limit (calls of a user); wait for the "
                   "answers of some"));
}

absl::Status CallerLoads::AddUnread(const Bearer& bearer, size_t bytes) {
  if (!IsLimited(bearer)) return absl::OkStatus();
  const std::string caller = CallerText(bearer);
  const absl::MutexLock lock(&mutex_);
  Load& load = loads_[caller];
  if (load.unread == 0 || load.unread + bytes <= limits_.unread_bytes) {
    load.unread += bytes;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      caller, ": ", load.unread >> 10, " KiB of answers have not been read, and this one has ",
      bytes >> 10, " KiB; the limit (unread answers of a user) is ", limits_.unread_bytes >> 10,
      " KiB: read those first"));
}

void CallerLoads::EndCall(const Bearer& bearer) {
  if (!IsLimited(bearer)) return;
  const absl::MutexLock lock(&mutex_);
  const auto found = loads_.find(CallerText(bearer));
  if (found == loads_.end()) return;
  if (found->second.calls > 0) --found->second.calls;
  ForgetIfNone(found);
}

void CallerLoads::RemoveUnread(const Bearer& bearer, size_t bytes) {
  if (!IsLimited(bearer)) return;
  const absl::MutexLock lock(&mutex_);
  const auto found = loads_.find(CallerText(bearer));
  if (found == loads_.end()) return;
  found->second.unread -= std::min(bytes, found->second.unread);
  ForgetIfNone(found);
}

absl::Status CallerLoads::AddStreamed(const Bearer& bearer, size_t bytes) {
  if (!IsLimited(bearer)) return absl::OkStatus();
  const std::string caller = CallerText(bearer);
  const absl::MutexLock lock(&mutex_);
  Load& load = loads_[caller];
  if (load.streamed + bytes <= limits_.stream_bytes) {
    load.streamed += bytes;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      caller, ": ", load.streamed >> 10,
      " KiB of what the streams of nodes were told have not been read, the limit (unread streams "
      "of a user) is ",
      limits_.stream_bytes >> 10, " KiB; connect again"));
}

void CallerLoads::RemoveStreamed(const Bearer& bearer, size_t bytes) {
  if (!IsLimited(bearer)) return;
  const absl::MutexLock lock(&mutex_);
  const auto found = loads_.find(CallerText(bearer));
  if (found == loads_.end()) return;
  found->second.streamed -= std::min(bytes, found->second.streamed);
  ForgetIfNone(found);
}

void CallerLoads::ForgetIfNone(Loads::iterator load) {
  if (load->second.calls == 0 && load->second.unread == 0 && load->second.streamed == 0) {
    loads_.erase(load);
  }
}

void CallerLoads::SayClosed(const Bearer& bearer, const std::string& what) {
  if (!log_) return;
  const std::string caller = CallerText(bearer);
  const MonoTime now = MonoNow();
  {
    const absl::MutexLock lock(&mutex_);
    const auto [said, is_new] = said_.try_emplace(caller, now);
    if (!is_new && now < said->second + kSayAgain) return;
    said->second = now;
    if (said_.size() > kSaidMax) said_.clear();
  }
  log_(absl::StrCat("closed ", what, " of ", caller, ", which was not read"));
}

}  // namespace cadre::service
