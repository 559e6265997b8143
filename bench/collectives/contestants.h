// Runs the contestants, each in its own process, pass by pass, and keeps their figures.
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

// Calls `run` in a child process and returns its result, so that what it starts, threads above all,
// ends with the child.
std::vector<double> InChild(size_t measurements, const std::function<std::vector<double>()>& run);

// Parses a program's output of "BYTES MICROSECONDS" lines.
std::vector<double> RunProgram(const std::string& command,
                               const std::vector<Measurement>& schedule);

// Calls `run_once` of all contestants again and again, so that a disturbance hits all of them; the
// best pass of each counts.
std::vector<Contestant> BestOf(int passes,
                               const std::function<std::vector<Contestant>()>& run_once);

// "4 KiB", "25 MiB".
std::string MessageSizeText(size_t bytes);

// The load average of the last minute.
std::string LoadAverage();

// The path of `name` in the directory from which `bazel run` was called.
std::string BesideCaller(const std::string& name);

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_CONTESTANTS_H_
