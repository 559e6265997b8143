// What a soak found, judged. Pure.
#ifndef CADRE_TESTS_SOAK_VERDICT_H_
#define CADRE_TESTS_SOAK_VERDICT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre {

// One thing that was counted at each look, such as a server's descriptors.
struct Series {
  std::string name;
  // It may be more at the end than it was at first by this part, and by this much in addition:
  // what is cached and kept for display grows until it is full.
  double slack_part = 0;
  int64_t slack = 0;
  std::vector<int64_t> values;
};

// Fewer looks say nothing about growth.
inline constexpr size_t kFewestLooks = 9;

// Of each series that grows a line that says so: even the least of its last third is more than the
// most of its first third, and the slack. A leak with each fault is, noise is not.
std::vector<std::string> Growing(const std::vector<Series>& series);

}  // namespace cadre

#endif  // CADRE_TESTS_SOAK_VERDICT_H_
