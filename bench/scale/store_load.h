// Clients of a job's store, all at once, for a while: how many operations are done each second.
#ifndef CADRE_BENCH_SCALE_STORE_LOAD_H_
#define CADRE_BENCH_SCALE_STORE_LOAD_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/scale/fleet.h"
#include "nlohmann/json.hpp"

namespace cadre {

// Requests that each client may have unanswered when it does not wait for each answer: as many as a
// worker may on its socket to its agent, and as the server remembers answers of one client. And
// what all may have: a quarter of what waits for the server's core at most.
inline constexpr size_t kPipelineDepth = 1024;
inline constexpr size_t kPipelineAll = 16384;

struct StoreLoadOptions {
  ServerAddress server;
  size_t clients = 1;
  absl::Duration span = absl::Seconds(3);
};

// Each has a connection of its own to the server and calls Store.Execute. Sets and gets one by one,
// and sets without waiting for each answer; an operation counts when it was answered, which for a
// set is when it is on the disk.
absl::StatusOr<nlohmann::json> MeasureDirectStore(const StoreLoadOptions& options);

// The same, as the server sees the workers of nodes, eight of each, on their nodes' streams.
absl::StatusOr<nlohmann::json> MeasureStreamStore(const StoreLoadOptions& options);

// The same messages with a bare server, which answers each at once and keeps nothing.
absl::StatusOr<nlohmann::json> MeasureBareStore(const StoreLoadOptions& options);

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_STORE_LOAD_H_
