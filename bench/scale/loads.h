// What a server is measured under: many agents that join, get orders, exchange ids and keep their
// leases, and clients of a job's store. Each load returns its figures as JSON, or why there are
// none.
#ifndef CADRE_BENCH_SCALE_LOADS_H_
#define CADRE_BENCH_SCALE_LOADS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/scale/fleet.h"
#include "nlohmann/json.hpp"

namespace cadre {

struct LoadOptions {
  ServerAddress server;
  size_t agents = 1000;
  // The workers of each agent.
  uint32_t slots = 8;
  // How often a measurement is repeated.
  int rounds = 10;
  // How long a continuous load lasts.
  absl::Duration span = absl::Seconds(12);
};

// Measures the time from the first connection until the last agent has its Welcome, its Assign, and
// the message that all workers run.
absl::StatusOr<nlohmann::json> MeasureJoin(const LoadOptions& options);
// The same for the bare server: until the last Join is answered.
absl::StatusOr<nlohmann::json> MeasureBareJoin(const LoadOptions& options);

// One worker fails. Measures the time from its report until each agent has the order to stop, and
// until each is assigned again.
absl::StatusOr<nlohmann::json> MeasureBroadcast(const LoadOptions& options);
absl::StatusOr<nlohmann::json> MeasureBareBroadcast(const LoadOptions& options);

// All ranks request the world's communicator id, which rank 0 publishes when half of them have done
// so. Measures the time to the last answer, from the first request and from the last.
absl::StatusOr<nlohmann::json> MeasureIds(const LoadOptions& options);

// All ranks enter a barrier. Measures the time from the first connection until the last has left
// it.
absl::StatusOr<nlohmann::json> MeasureJoinAndBarrier(const LoadOptions& options);

// Agents that only renew their leases. Measures the memory and processor time of the server, whose
// process is `process`.
absl::StatusOr<nlohmann::json> MeasureIdle(const LoadOptions& options, int process);

// The limit of unanswered requests of a client that does not wait for each answer: as many as a
// worker may have on its socket to its agent, and as many answers as the server remembers of one
// client. And the limit of all clients: a quarter of the length of the server's queue.
inline constexpr size_t kPipelineDepth = 1024;
inline constexpr size_t kPipelineAll = 16384;

// Clients of a job's store, all at once, for a while. Measures the operations per second.
struct StoreLoadOptions {
  ServerAddress server;
  size_t clients = 1;
  absl::Duration span = absl::Seconds(3);
};

// Each client has its own connection to the server and calls Store.Execute. It sets and gets one by
// one, and sets without waiting for each answer. An operation counts when it is answered, which for
// a set is when it is on the disk.
absl::StatusOr<nlohmann::json> MeasureDirectStore(const StoreLoadOptions& options);

// The same for the workers of nodes, eight on each, whose requests come on their nodes' streams.
absl::StatusOr<nlohmann::json> MeasureStreamStore(const StoreLoadOptions& options);

// The same messages to a bare server, which answers each at once and stores nothing.
absl::StatusOr<nlohmann::json> MeasureBareStore(const StoreLoadOptions& options);

// The cost of a process, from /proc.
struct ProcessCost {
  int64_t resident_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t threads = 0;
  // The user and system time of all its threads so far.
  absl::Duration processor;
};

// NOT_FOUND: there is no such process.
absl::StatusOr<ProcessCost> CostOf(int process);

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_LOADS_H_
