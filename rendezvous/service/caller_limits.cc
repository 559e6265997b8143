#include "rendezvous/service/caller_limits.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace cadre::service {
namespace {

constexpr absl::Duration kLogInterval = absl::Minutes(1);
// The last line is remembered for this many callers.
constexpr size_t kLoggedCallersMax = 256;

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

std::shared_ptr<CallerTraffic> CallerLoads::TrafficOf(const Bearer& bearer) {
  if (!IsLimited(bearer)) return nullptr;
  std::string caller = CallerText(bearer);
  // Each launcher has limits of its own: a job may have thousands, and each sends something now and
  // then.
  if (bearer.kind == Bearer::Kind::kPart) absl::StrAppend(&caller, ", part ", bearer.part);
  const absl::MutexLock lock(&mutex_);
  if (traffic_.size() >= forget_traffic_at_) ForgetTraffic();
  std::shared_ptr<CallerTraffic>& traffic = traffic_[caller];
  if (traffic == nullptr) {
    const bool reads = bearer.kind == Bearer::Kind::kReader;
    traffic =
        std::make_shared<CallerTraffic>(caller, reads ? kReadersConnectionsMax : kConnectionsMax);
  }
  return traffic;
}

void CallerLoads::ForgetTraffic() {
  const MonoTime now = MonoNow();
  for (auto traffic = traffic_.begin(); traffic != traffic_.end();) {
    const bool is_new = traffic->second.use_count() == 1 && traffic->second->IsFull(now);
    traffic = is_new ? traffic_.erase(traffic) : std::next(traffic);
  }
  forget_traffic_at_ = std::max<size_t>(256, 2 * traffic_.size());
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
      " KiB of messages to the streams of nodes have not been read; the limit (unread streams of a "
      "user) is ",
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

void CallerLoads::LogClosed(const Bearer& bearer, const std::string& what) {
  if (!log_) return;
  const std::string caller = CallerText(bearer);
  const MonoTime now = MonoNow();
  {
    const absl::MutexLock lock(&mutex_);
    const auto [said, is_new] = last_logged_.try_emplace(caller, now);
    if (!is_new && now < said->second + kLogInterval) return;
    said->second = now;
    if (last_logged_.size() > kLoggedCallersMax) last_logged_.clear();
  }
  log_(absl::StrCat("closed ", what, " of ", caller, ", which was not read"));
}

namespace {

absl::Status TooMuch(const std::string& caller, const std::string& what) {
  return absl::ResourceExhaustedError(
      absl::StrCat(caller, " exceeds the limit of ", what, "; the connection is closed"));
}

absl::Status TooManyCalls(const std::string& caller) {
  return TooMuch(caller, absl::StrCat(kCallsPerSecond, " calls a second (calls of a user)"));
}

absl::Status TooManyBytes(const std::string& caller) {
  return TooMuch(caller, absl::StrCat(static_cast<int64_t>(kRequestBytesPerSecond) >> 20,
                                      " MiB of requests a second (request bytes of a user)"));
}

}  // namespace

absl::Status CallerTraffic::Begin(double calls, double bytes, MonoTime now, bool* often) {
  const absl::MutexLock lock(&mutex_);
  if (connections_ >= connections_max_) {
    return TooMuch(caller_, absl::StrCat(connections_max_, " connections (connections of a user)"));
  }
  if (!calls_.Take(calls, now)) return TooManyCalls(caller_);
  if (!request_bytes_.Take(bytes, now)) return TooManyBytes(caller_);
  *often = !new_connections_.Take(1, now);
  ++connections_;
  return absl::OkStatus();
}

void CallerTraffic::End() {
  const absl::MutexLock lock(&mutex_);
  --connections_;
}

absl::Status CallerTraffic::Take(double calls, double request_bytes, MonoTime now) {
  const absl::MutexLock lock(&mutex_);
  if (calls > 0 && !calls_.Take(calls, now)) return TooManyCalls(caller_);
  if (!request_bytes_.Take(request_bytes, now)) return TooManyBytes(caller_);
  return absl::OkStatus();
}

absl::Status CallerTraffic::Hold(int64_t open_calls, int64_t partial_bytes) {
  const absl::MutexLock lock(&mutex_);
  open_calls_ += open_calls;
  partial_bytes_ += partial_bytes;
  if (open_calls > 0 && open_calls_ > kOpenCallsMax) {
    return TooMuch(caller_,
                   absl::StrCat(kOpenCallsMax, " requests under way (open calls of a user)"));
  }
  if (partial_bytes > 0 && partial_bytes_ > kPartialBytesMax) {
    return TooMuch(caller_,
                   absl::StrCat(kPartialBytesMax >> 20,
                                " MiB of messages under way (partial messages of a user)"));
  }
  return absl::OkStatus();
}

absl::Status CallerTraffic::MayAsk(MonoTime now) {
  const absl::MutexLock lock(&mutex_);
  if (answer_bytes_.Left(now) > 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      caller_, " exceeds the limit of ", static_cast<int64_t>(kAnswerBytesPerSecond) >> 20,
      " MiB of answers a second (answer bytes of a user); ask less often, or for less"));
}

void CallerTraffic::OnAnswered(size_t bytes, MonoTime now) {
  const absl::MutexLock lock(&mutex_);
  answer_bytes_.Charge(static_cast<double>(bytes), now);
}

bool CallerTraffic::IsFull(MonoTime now) {
  const absl::MutexLock lock(&mutex_);
  return calls_.IsFull(now) && request_bytes_.IsFull(now) && answer_bytes_.IsFull(now) &&
         new_connections_.IsFull(now);
}

namespace {

// Even if other sources have filled the server, a source may send one large first message, which
// costs as much as this many connections.
constexpr int64_t kConnectionsOfOneMessage = 10;

}  // namespace

std::string SourceOf(absl::string_view address) {
  if (absl::StartsWith(address, "127.") || address == "::1") return "loopback";
  const std::string text(address);
  in6_addr v6;
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return text;
  std::memset(v6.s6_addr + 8, 0, 8);
  char network[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &v6, network, sizeof(network));
  return network;
}

AdmissionBudget::Source& AdmissionBudget::Find(const std::string& source) {
  const RateLimit full(static_cast<double>(limits_.burst), static_cast<double>(limits_.per_second));
  return sources_.try_emplace(source, Source{full}).first->second;
}

bool AdmissionBudget::Begin(const std::string& source, MonoTime now) {
  const absl::MutexLock lock(&mutex_);
  ForgetSome(now);
  Source& one = Find(source);
  // A source that holds nothing is admitted even if others have filled the server.
  if (held_ + limits_.connection > limits_.in_all && one.held > 0) return false;
  if (!one.limit.Take(static_cast<double>(limits_.connection), now)) return false;
  one.held += limits_.connection;
  held_ += limits_.connection;
  return true;
}

bool AdmissionBudget::Spend(const std::string& source, int64_t cost, MonoTime now) {
  const absl::MutexLock lock(&mutex_);
  Source& one = Find(source);
  if (held_ + cost > limits_.in_all &&
      one.held + cost > kConnectionsOfOneMessage * limits_.connection) {
    return false;
  }
  // The last quarter is reserved for new connections.
  const auto kept = static_cast<double>(limits_.burst / 4);
  if (one.limit.Left(now) < kept + static_cast<double>(cost)) return false;
  one.limit.Take(static_cast<double>(cost), now);
  one.held += cost;
  held_ += cost;
  return true;
}

void AdmissionBudget::End(const std::string& source, int64_t cost, bool admitted, MonoTime now) {
  const absl::MutexLock lock(&mutex_);
  Source& one = Find(source);
  one.held -= cost;
  held_ -= cost;
  if (admitted) one.limit.GiveBack(static_cast<double>(cost), now);
}

size_t AdmissionBudget::sources() const {
  const absl::MutexLock lock(&mutex_);
  return sources_.size();
}

void AdmissionBudget::ForgetSome(MonoTime now) {
  if (sources_.size() < forget_at_) return;
  for (auto source = sources_.begin(); source != sources_.end();) {
    const bool is_new = source->second.held == 0 && source->second.limit.IsFull(now);
    source = is_new ? sources_.erase(source) : std::next(source);
  }
  forget_at_ = std::max<size_t>(1024, 2 * sources_.size());
}

}  // namespace cadre::service
