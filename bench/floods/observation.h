// Measures, over a span of time, how honest users of a server are served and what resources the
// server takes; and prints the figures as a table and as JSON.
#ifndef CADRE_BENCH_FLOODS_OBSERVATION_H_
#define CADRE_BENCH_FLOODS_OBSERVATION_H_

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "bench/floods/target.h"
#include "nlohmann/json.hpp"
#include "tests/testing/http2_flood.h"

namespace cadre {

// Calls of one kind.
struct Served {
  // The milliseconds of each call that was answered.
  std::vector<double> ms;
  // The number of failed calls, the error of the last, and the longest time that one took.
  int failed = 0;
  std::string error;
  double failed_ms = 0;
  // The server has no calls of this kind.
  bool none = false;

  std::optional<double> Median() const;
  std::optional<double> Worst() const;
};

struct Figures {
  Served launches, kept_calls, new_calls;
  double seconds = 0;
  double first_mib = 0, peak_mib = 0;
  double processor_seconds = 0;
  // The observation ended early because the server's memory reached the limit.
  bool reached_limit = false;
};

struct ObservationLimits {
  absl::Duration duration;
  double memory_mib = 0;
};

// Blocks until the end of the observation. `on_limit` is called as soon as the memory limit is
// reached, so that the flood can be ended before it exhausts the machine's memory.
Figures Observe(Target& target, const ObservationLimits& limits,
                const std::function<void()>& on_limit);

// A flood's figures, as a line of the table and as JSON. Pure.
nlohmann::json ToJson(const Figures& figures);
nlohmann::json ToJson(const FloodCounts& counts);

// The entries are {flood, token, transport, from, target, quiet, flooded, sent, lost}, or
// {..., error}. They are grouped by flood, Cadre's first.
void PrintTable(const nlohmann::json& entries);
void PrintHead();
void PrintLine(const nlohmann::json& entry);

}  // namespace cadre

#endif  // CADRE_BENCH_FLOODS_OBSERVATION_H_
