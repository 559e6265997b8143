// Runs of examples/sharded_transformer, and what they say.
#ifndef CADRE_TESTS_EXAMPLES_TRANSFORMER_RUNS_H_
#define CADRE_TESTS_EXAMPLES_TRANSFORMER_RUNS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/examples/number_after.h"
#include "tests/testing/launch.h"

namespace cadre::transformer {

inline constexpr char kProgram[] = "examples/sharded_transformer/sharded_transformer";
inline constexpr absl::Duration kTraining = absl::Minutes(2);
// As small as it is worth anything.
inline const std::vector<std::string> kSmall = {"--layers",    "2",  "--width", "16",
                                                "--context",   "16", "--batch", "12",
                                                "--log-every", "1",  "--write", "8"};

inline std::unique_ptr<Process> Start(int ranks, const std::string& strategy,
                                      const std::vector<std::string>& flags,
                                      const std::vector<std::string>& launcher_flags = {},
                                      const std::vector<std::string>& size = kSmall) {
  std::vector<std::string> arguments = {"--nproc-per-node", absl::StrCat(ranks)};
  arguments.insert(arguments.end(), launcher_flags.begin(), launcher_flags.end());
  arguments.insert(arguments.end(), {"--", kProgram, "--strategy", strategy});
  arguments.insert(arguments.end(), size.begin(), size.end());
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return StartStandalone(arguments);
}

inline double LossOf(const std::string& output, int step) {
  return NumberAfter(output, absl::StrCat("step ", step, ": loss "));
}

}  // namespace cadre::transformer

#endif  // CADRE_TESTS_EXAMPLES_TRANSFORMER_RUNS_H_
