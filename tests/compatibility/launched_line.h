// What launched_probe says when its ranks have met.
#ifndef CADRE_TESTS_COMPATIBILITY_LAUNCHED_LINE_H_
#define CADRE_TESTS_COMPATIBILITY_LAUNCHED_LINE_H_

#include <string>

#include "absl/strings/str_cat.h"

namespace cadre {

inline constexpr char kLaunchedProbe[] = "tests/compatibility/launched_probe";

// Of a rank; `per_node` ranks are on each node.
inline std::string LaunchedLine(int rank, int size, int per_node, int restarts = 0) {
  return absl::StrCat("launched rank=", rank, " of=", size, " local=", rank % per_node,
                      " of=", per_node, " node=", rank / per_node, " of=", size / per_node,
                      " restarts=", restarts, " ");
}

}  // namespace cadre

#endif  // CADRE_TESTS_COMPATIBILITY_LAUNCHED_LINE_H_
