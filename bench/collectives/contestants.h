// How contestants are run and their figures kept: each in a process of its own, pass by pass.
#ifndef CADRE_BENCH_COLLECTIVES_CONTESTANTS_H_
#define CADRE_BENCH_COLLECTIVES_CONTESTANTS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/collectives/schedule.h"

namespace cadre {

struct Contestant {
  std::string name;
  std::vector<double> microseconds;  // one per measurement; empty: it failed, or did not take part
};

// What `run` returns, in a process of its own: what it starts, threads above all, ends with it.
std::vector<double> InChild(size_t measurements, const std::function<std::vector<double>()>& run);

// A program's output of "BYTES MICROSECONDS" lines.
std::vector<double> RunProgram(const std::string& command,
                               const std::vector<Measurement>& schedule);

// `run_once` again and again, so that a disturbance hits all; the best pass of each counts.
std::vector<Contestant> BestOf(int passes,
                               const std::function<std::vector<Contestant>()>& run_once);

// "4 KiB", "25 MiB".
std::string SizeText(size_t bytes);

// Of the last minute.
std::string LoadAverage();

// Where `bazel run` was called, and there `name`.
std::string BesideCaller(const std::string& name);

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_CONTESTANTS_H_
