// Simulated agents without workers, and a job of them. Each has its own connection and stream to
// the server and sends on it what an agent sends. They are served by gRPC's threads of this
// process.
#ifndef CADRE_BENCH_SCALE_FLEET_H_
#define CADRE_BENCH_SCALE_FLEET_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/time.h"
#include "proto/rendezvous.pb.h"

namespace cadre {

// When an event first happened to each of `count` agents or ranks. Thread safe.
class Marks {
 public:
  explicit Marks(size_t count)
      : count_(count), left_(count), at_us_(std::make_unique<std::atomic<int64_t>[]>(count)) {}

  void Mark(size_t which) {
    int64_t unset = 0;
    if (!at_us_[which].compare_exchange_strong(unset, MonoNow().micros())) return;
    if (left_.fetch_sub(1) == 1) all_.Notify();
  }

  // False if not all were marked in time.
  bool WaitForAll(absl::Duration timeout) const {
    return all_.WaitForNotificationWithTimeout(timeout);
  }
  size_t count() const { return count_; }
  size_t marked() const { return count_ - left_.load(); }

  // The times from `start` to each mark, ascending. All must be marked.
  std::vector<double> SortedMillisSince(MonoTime start) const {
    std::vector<double> millis;
    for (size_t i = 0; i < count_; ++i) {
      millis.push_back(static_cast<double>(at_us_[i].load() - start.micros()) / 1000);
    }
    std::sort(millis.begin(), millis.end());
    return millis;
  }
  double LastMillisSince(MonoTime start) const { return SortedMillisSince(start).back(); }

 private:
  const size_t count_;
  std::atomic<size_t> left_;
  // 0: not marked yet.
  const std::unique_ptr<std::atomic<int64_t>[]> at_us_;
  absl::Notification all_;
};

// Returns the value that `part` of an ascending, non-empty list do not exceed.
inline double Percentile(const std::vector<double>& sorted, double part) {
  const size_t at = static_cast<size_t>(part * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

// Where agents and other clients reach the server, and with which token.
struct ServerAddress {
  std::string endpoint;
  std::string token;

  // TLS if the token names the server's key, otherwise clear text.
  std::shared_ptr<grpc::ChannelCredentials> Credentials() const;
};

// How often an agent renews its lease.
inline constexpr absl::Duration kRenewInterval = absl::Seconds(3);

struct FleetOptions {
  ServerAddress server;
  std::string job;
  size_t agents = 1;
  uint32_t slots = 8;
};

// Thread safe.
class Fleet {
 public:
  // Called on gRPC's threads, before the agent itself acts; must not block.
  using Observer = std::function<void(size_t agent, const v1::ServerMessage& message)>;

  // An agent joins when its stream is open, renews its lease, reports its workers when it is
  // assigned, and that they are gone when it is told to stop.
  Fleet(FleetOptions options, Observer observer);
  // Cancels the streams and waits for their end.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Opens all streams.
  void Connect();
  // Sends the message as the agent, with the generation that the agent knows.
  void Send(size_t agent, v1::NodeMessage message);
  size_t size() const;
  // Describes the first stream that ended by itself; empty if none has.
  std::string broken() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// The limit of each wait.
inline constexpr absl::Duration kLoadTimeout = absl::Seconds(60);
inline constexpr char kLoadJob[] = "scale";

// An error with the number of agents that were in time, and with a stream that broke.
absl::Status LateError(absl::string_view what, const Marks& marks, const Fleet& fleet);

// A job of simulated agents whose workers all run.
class RunningJob {
 public:
  // Returns when all workers run. DEADLINE_EXCEEDED: they did not run in time.
  static absl::StatusOr<std::unique_ptr<RunningJob>> Start(const ServerAddress& server,
                                                           size_t agents, uint32_t slots);

  // `observer` receives everything from now on, until the next one or null; a call may still be
  // under way then.
  void Observe(Fleet::Observer observer);

  Fleet& fleet() { return *fleet_; }
  uint32_t world() const { return world_; }
  // The time from the first connection until the last agent has been welcomed, has been assigned
  // its ranks, and knows that all workers run.
  double joined_ms() const { return welcomed_.LastMillisSince(connected_); }
  double assigned_ms() const { return assigned_.LastMillisSince(connected_); }
  double running_ms() const { return running_.LastMillisSince(connected_); }

 private:
  RunningJob(size_t agents, uint32_t slots)
      : world_(static_cast<uint32_t>(agents) * slots),
        welcomed_(agents),
        assigned_(agents),
        running_(agents) {}
  void OnMessage(size_t agent, const v1::ServerMessage& message);

  const uint32_t world_;
  Marks welcomed_, assigned_, running_;
  MonoTime connected_;
  absl::Mutex mutex_;
  std::shared_ptr<const Fleet::Observer> observer_ ABSL_GUARDED_BY(mutex_);
  // The last member, because it uses all others.
  std::unique_ptr<Fleet> fleet_;
};

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_FLEET_H_
