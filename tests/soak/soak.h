// Runs real clusters under faults for a while, and measures now and then whether anything
// accumulates: processes, descriptors, memory, files. One thread.
#ifndef CADRE_TESTS_SOAK_SOAK_H_
#define CADRE_TESTS_SOAK_SOAK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre {

struct SoakOptions {
  absl::Duration length = absl::Minutes(30);
  // The time from one fault to the next.
  absl::Duration period = absl::Seconds(5);
  // The time between two measurements. Before each, the soak waits until everything has recovered.
  absl::Duration measure_every = absl::Minutes(1);
  unsigned seed = 1;
};

struct SoakReport {
  int faults = 0;
  // A table for people.
  std::string table;
  // A line for each thing that is wrong.
  std::vector<std::string> findings;
};

// Prints to standard output which fault it injects where.
SoakReport RunSoak(const SoakOptions& options);

}  // namespace cadre

#endif  // CADRE_TESTS_SOAK_SOAK_H_
