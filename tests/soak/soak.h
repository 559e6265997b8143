// Real clusters under faults for a while, looked at now and then: does anything pile up? One
// thread.
#ifndef CADRE_TESTS_SOAK_SOAK_H_
#define CADRE_TESTS_SOAK_SOAK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre {

struct SoakOptions {
  absl::Duration length = absl::Minutes(30);
  // From one fault to the next.
  absl::Duration period = absl::Seconds(5);
  // Between two looks, before each of which faults wait until all is whole again.
  absl::Duration look_every = absl::Minutes(1);
  unsigned seed = 1;
};

struct SoakReport {
  int faults = 0;
  // A table for people.
  std::string table;
  // What is wrong, a line each; empty: nothing is.
  std::vector<std::string> findings;
};

// Tells on standard output what it does to whom.
SoakReport RunSoak(const SoakOptions& options);

}  // namespace cadre

#endif  // CADRE_TESTS_SOAK_SOAK_H_
