// What callers may cost the server, so that none can use up its processors and its memory. Each
// user has limits on what is in progress at a time (CallerLoads) and per second (CallerTraffic);
// administrators have none. Connections that have not authenticated yet are charged to their source
// (AdmissionBudget). All classes except RateLimit are thread safe.
#ifndef CADRE_RENDEZVOUS_SERVICE_CALLER_LIMITS_H_
#define CADRE_RENDEZVOUS_SERVICE_CALLER_LIMITS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/time.h"

namespace cadre::service {

// A rate limit with a burst: `burst` may be taken at once, and `per_second` is refilled. Pure.
class RateLimit {
 public:
  RateLimit(double burst, double per_second)
      : burst_(burst), per_second_(per_second), left_(burst) {}

  // What may be taken now; negative if more was charged.
  double Left(MonoTime now) {
    if (refilled_ < now) {
      left_ = std::min(burst_, left_ + absl::ToDoubleSeconds(now - refilled_) * per_second_);
      refilled_ = now;
    }
    return left_;
  }
  // Takes nothing and returns false if less than `amount` is left.
  bool Take(double amount, MonoTime now) {
    if (Left(now) < amount) return false;
    left_ -= amount;
    return true;
  }
  // Takes the amount in any case. `Left` may become negative, by `burst` at most.
  void Charge(double amount, MonoTime now) { left_ = std::max(Left(now) - amount, -burst_); }
  void GiveBack(double amount, MonoTime now) { left_ = std::min(burst_, Left(now) + amount); }
  bool IsFull(MonoTime now) { return Left(now) >= burst_; }

 private:
  const double burst_;
  const double per_second_;
  double left_;
  MonoTime refilled_;
};

// Limits for all of a user's connections together. One unit is a call that begins or is reset, 512
// bytes of headers, 8 PING or SETTINGS frames, or 64 DATA and WINDOW_UPDATE frames, which cost less
// and of which a node sends some each second.
inline constexpr double kCallsBurst = 1'000;
inline constexpr double kCallsPerSecond = 500;
// Bytes of requests. Streams have no end at which they would be counted.
inline constexpr double kRequestBytesBurst = 32 << 20;
inline constexpr double kRequestBytesPerSecond = 32 << 20;
// Bytes of answers. An answer may exceed them; further calls are refused until the excess is made
// up for.
inline constexpr double kAnswerBytesBurst = 64 << 20;
inline constexpr double kAnswerBytesPerSecond = 16 << 20;
// Calls whose client may still send something, beyond the first of each connection, and bytes of
// incomplete messages.
inline constexpr int64_t kOpenCallsMax = 1024;
inline constexpr int64_t kPartialBytesMax = 64 << 20;
// Simultaneous connections: the nodes of a large job, which join it with their user's token, or
// people and dashboards with read-only tokens. Each connection takes some 70 KiB. And the rate of
// new connections.
inline constexpr int64_t kConnectionsMax = 4096 + 256;
inline constexpr int64_t kReadersConnectionsMax = 256;
inline constexpr double kConnectionsPerSecond = 50;

// The traffic of one caller (a user, or another bearer of a token with limits) on all its
// connections, requests and answers. It is limited per second.
class CallerTraffic {
 public:
  // `caller` names the caller in errors.
  explicit CallerTraffic(std::string caller, int64_t connections_max = kConnectionsMax)
      : caller_(std::move(caller)), connections_max_(connections_max) {}

  // Counts a connection, and the calls and bytes that it used before it authenticated.
  // RESOURCE_EXHAUSTED: it is not counted, and must be closed. `often` is set if new connections
  // come faster than allowed.
  absl::Status Begin(double calls, double bytes, MonoTime now, bool* often);
  void End();
  // Counts calls and bytes of requests. RESOURCE_EXHAUSTED: they exceed the limits.
  absl::Status Take(double calls, double request_bytes, MonoTime now);
  // Adds to what the caller holds; negative numbers reduce it. Fails likewise.
  absl::Status Hold(int64_t open_calls, int64_t partial_bytes);
  // Call it before a call is answered. Fails likewise.
  absl::Status MayAsk(MonoTime now);
  void OnAnswered(size_t bytes, MonoTime now);
  // Whether all rates are full again, so that the object can be forgotten.
  bool IsFull(MonoTime now);

 private:
  const std::string caller_;
  const int64_t connections_max_;
  absl::Mutex mutex_;
  int64_t connections_ ABSL_GUARDED_BY(mutex_) = 0;
  RateLimit new_connections_ ABSL_GUARDED_BY(mutex_){kConnectionsMax, kConnectionsPerSecond};
  RateLimit calls_ ABSL_GUARDED_BY(mutex_){kCallsBurst, kCallsPerSecond};
  RateLimit request_bytes_ ABSL_GUARDED_BY(mutex_){kRequestBytesBurst, kRequestBytesPerSecond};
  RateLimit answer_bytes_ ABSL_GUARDED_BY(mutex_){kAnswerBytesBurst, kAnswerBytesPerSecond};
  int64_t open_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t partial_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The limits of one user at a time.
struct CallerLimits {
  // Calls of a user that are not answered, or whose answer is not read.
  size_t calls = 128;
  // Bytes of a user's answers that are not read. A single answer may be larger if there is no
  // other.
  size_t unread_bytes = 64 << 20;
  // Bytes sent to the streams of a user's nodes and not read. The limit is high because each of
  // 4,096 nodes may receive the addresses of all others at once.
  size_t stream_bytes = size_t{1} << 30;
  // A call is ended if its answer is not read within this time.
  absl::Duration unread_for = absl::Minutes(1);
};

// Counts how much of the server each caller uses at a time: running calls, and bytes of answers
// that the caller has not read.
class CallerLoads {
 public:
  // `log` receives lines for the server's log, and may be null.
  CallerLoads(const CallerLimits& limits, std::function<void(const std::string&)> log)
      : limits_(limits), log_(std::move(log)) {}

  const CallerLimits& limits() const { return limits_; }

  // Count one more call, or more bytes sent. RESOURCE_EXHAUSTED: the limit is reached and nothing
  // is counted; the message names the caller and the limit.
  absl::Status BeginCall(const Bearer& bearer);
  absl::Status AddUnread(const Bearer& bearer, size_t bytes);
  void EndCall(const Bearer& bearer);
  void RemoveUnread(const Bearer& bearer, size_t bytes);
  // The same for the streams of nodes.
  absl::Status AddStreamed(const Bearer& bearer, size_t bytes);
  void RemoveStreamed(const Bearer& bearer, size_t bytes);

  // The limits for what the caller's connections send; null: an administrator has none.
  std::shared_ptr<CallerTraffic> TrafficOf(const Bearer& bearer);

  // Logs that `what` of the caller was closed because the caller does not read, at most once a
  // minute per caller.
  void LogClosed(const Bearer& bearer, const std::string& what);

 private:
  struct Load {
    size_t calls = 0;
    size_t unread = 0;
    size_t streamed = 0;
  };
  using Loads = std::map<std::string, Load>;
  // Forgets traffic objects whose limits are all full again.
  void ForgetTraffic() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetIfNone(Loads::iterator load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallerLimits limits_;
  const std::function<void(const std::string&)> log_;
  absl::Mutex mutex_;
  // The loads of the callers that have any, by name.
  Loads loads_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, MonoTime> last_logged_ ABSL_GUARDED_BY(mutex_);
  // By name. They outlive the connections, so that a new connection does not reset the limits.
  std::map<std::string, std::shared_ptr<CallerTraffic>> traffic_ ABSL_GUARDED_BY(mutex_);
  size_t forget_traffic_at_ ABSL_GUARDED_BY(mutex_) = 256;
};

// "user ann", "the read-only tokens".
std::string CallerText(const Bearer& bearer);

// Costs of unauthenticated connections are counted in calls: gRPC needs some 20 us and 10 KiB to
// open one, and everything else is measured against that.
struct AdmissionLimits {
  // The charge of a connection for its TLS handshake (about 1 ms) and its first few calls; a caller
  // with a token authenticates within that.
  int64_t connection = 16;
  // The budget of one source: 256 connections at once, and then 250 a second.
  int64_t burst = 4096;
  int64_t per_second = 4000;
  // The budget of all sources together, at once: some 160 MiB of gRPC's memory, of which one source
  // may use a quarter.
  int64_t in_all = 16384;
};

// The source of a connection, which treats the addresses of one machine as one: all of 127.0.0.0/8
// and ::1 are one source, and so are the addresses of an IPv6 network of 64 bits.
std::string SourceOf(absl::string_view address);

// Bounds what unauthenticated connections may cost, so that callers of one machine with no token,
// or with wrong ones, cannot exhaust the server. A source is charged for its connections; it gets
// the charge back when they authenticate, and otherwise at a fixed rate. While its budget is used
// up, further connections of the source wait in the acceptor, and one that sends more is closed.
class AdmissionBudget {
 public:
  explicit AdmissionBudget(const AdmissionLimits& limits) : limits_(limits) {}

  const AdmissionLimits& limits() const { return limits_; }

  // Charges another connection of this source, and returns whether gRPC may have it.
  bool Begin(const std::string& source, MonoTime now);
  // Charges a connection for more, from three quarters of the budget. False: nothing is charged,
  // and the connection must be closed.
  bool Spend(const std::string& source, int64_t cost, MonoTime now);
  // The connection has authenticated (`admitted`) or ended; `cost` is its total charge.
  void End(const std::string& source, int64_t cost, bool admitted, MonoTime now);

  // The number of sources that are remembered.
  size_t sources() const;

 private:
  struct Source {
    RateLimit limit;
    // The charges of its current connections.
    int64_t held = 0;
  };
  Source& Find(const std::string& source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets sources whose budget is full again.
  void ForgetSome(MonoTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AdmissionLimits limits_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Source> sources_ ABSL_GUARDED_BY(mutex_);
  int64_t held_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t forget_at_ ABSL_GUARDED_BY(mutex_) = 1024;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_CALLER_LIMITS_H_
