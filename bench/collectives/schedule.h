// The schedule of the measurements, the same for every contestant: sizes, warm-up, rounds, and the
// median of the rounds.
#ifndef CADRE_BENCH_COLLECTIVES_SCHEDULE_H_
#define CADRE_BENCH_COLLECTIVES_SCHEDULE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"

namespace cadre {

struct Measurement {
  size_t bytes;
  int warm_up;     // all-reduces
  int rounds;      // of which the median counts
  int iterations;  // all-reduces in a round
};

// The same numbers for all; Gloo and MPI need longer for the large ones, so those are few.
inline std::vector<Measurement> Schedule(bool quick) {
  std::vector<Measurement> schedule = {
      {size_t{4} << 10, 500, 15, 500},  {size_t{64} << 10, 200, 15, 200},
      {size_t{256} << 10, 100, 15, 60}, {size_t{1} << 20, 50, 15, 30},
      {size_t{4} << 20, 20, 11, 10},    {size_t{25} << 20, 5, 9, 4},
      {size_t{100} << 20, 3, 7, 2},
  };
  if (quick) {
    schedule.resize(4);
    for (Measurement& one : schedule) one.rounds = 3;
  }
  return schedule;
}

// The schedule as text, "4096:500:15:500,...", for the programs in other languages.
inline std::string ToText(const std::vector<Measurement>& schedule) {
  std::string text;
  for (const Measurement& one : schedule) {
    if (!text.empty()) text += ",";
    text += std::to_string(one.bytes) + ":" + std::to_string(one.warm_up) + ":" +
            std::to_string(one.rounds) + ":" + std::to_string(one.iterations);
  }
  return text;
}

// Measures the microseconds of one all-reduce: the median over the rounds of the mean of each. Each
// of `contestants` makes a given number of all-reduces; they take turns, round by round, so that
// what disturbs one disturbs the others. `meet` brings the ranks together before a round, after one
// all-reduce that finds the caches as another contestant left them.
template <typename Meet, typename... Contestants>
std::array<double, sizeof...(Contestants)> MedianMicroseconds(const Measurement& one,
                                                              const Meet& meet,
                                                              const Contestants&... contestants) {
  std::array<std::vector<double>, sizeof...(Contestants)> rounds;
  const auto run_round = [&](const auto& contestant, std::vector<double>& means) {
    contestant(1);
    meet();
    const MonoTime start = MonoNow();
    contestant(one.iterations);
    means.push_back(absl::ToDoubleMicroseconds(MonoNow() - start) / one.iterations);
  };
  (contestants(one.warm_up), ...);
  for (int round = 0; round < one.rounds; ++round) {
    size_t turn = 0;
    (run_round(contestants, rounds[turn++]), ...);
  }
  std::array<double, sizeof...(Contestants)> medians;
  for (size_t i = 0; i < medians.size(); ++i) {
    std::nth_element(rounds[i].begin(), rounds[i].begin() + rounds[i].size() / 2, rounds[i].end());
    medians[i] = rounds[i][rounds[i].size() / 2];
  }
  return medians;
}

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_SCHEDULE_H_
