// The load that many agents at once are for a server: join, hear orders, exchange ids, keep their
// leases. Each gives its figures as JSON, or why there are none.
#ifndef CADRE_BENCH_SCALE_RENDEZVOUS_LOAD_H_
#define CADRE_BENCH_SCALE_RENDEZVOUS_LOAD_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "bench/scale/fleet.h"
#include "nlohmann/json.hpp"

namespace cadre {

struct LoadOptions {
  ServerAddress server;
  size_t agents = 1000;
  // Workers of each.
  uint32_t slots = 8;
  // How often what is measured over again is repeated.
  int rounds = 10;
  // How long what is measured while it lasts goes on.
  absl::Duration span = absl::Seconds(12);
};

// From the first connection until the last agent has its Welcome, its Assign, and has heard that
// all workers run.
absl::StatusOr<nlohmann::json> MeasureJoin(const LoadOptions& options);
// The same of the bare server: until the last Join is answered.
absl::StatusOr<nlohmann::json> MeasureBareJoin(const LoadOptions& options);

// One worker fails: from its report until each agent has the order to stop, and until each is
// assigned again.
absl::StatusOr<nlohmann::json> MeasureBroadcast(const LoadOptions& options);
absl::StatusOr<nlohmann::json> MeasureBareBroadcast(const LoadOptions& options);

// All ranks ask for the world's communicator id, which rank 0 publishes when half of them have:
// until the last answer, from the first request and from the last.
absl::StatusOr<nlohmann::json> MeasureIds(const LoadOptions& options);

// All ranks enter a barrier: from the first connection until the last has left it.
absl::StatusOr<nlohmann::json> MeasureJoinAndBarrier(const LoadOptions& options);

// Agents that do nothing but renew. `process` is the server's; gives its memory and processor time.
absl::StatusOr<nlohmann::json> MeasureIdle(const LoadOptions& options, int process);

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_RENDEZVOUS_LOAD_H_
