// The values of options of Slurm's commands, in the forms that Slurm accepts. Pure. Every error
// says what was expected, without the name of the option.
#ifndef CADRE_LAUNCHER_SLURM_OPTION_VALUES_H_
#define CADRE_LAUNCHER_SLURM_OPTION_VALUES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre::launcher {

// Decimal digits, at least `least`; also "2k" for 2048.
absl::StatusOr<uint32_t> ParseSlurmCount(absl::string_view text, uint32_t least);

// A number of nodes: "2" or "2-4".
absl::StatusOr<std::pair<uint32_t, uint32_t>> ParseSlurmNodes(absl::string_view text);

// A time limit: "30" (minutes), "30:15", "1:30:00", "2-12", "2-12:30", "2-12:30:15". Infinite:
// "UNLIMITED", "INFINITE", "-1" and "0".
absl::StatusOr<absl::Duration> ParseSlurmTime(absl::string_view text);

// Memory in bytes: "4096" (MiB), "4G", "4GB", "512K", "1T". 0: all of it.
absl::StatusOr<uint64_t> ParseSlurmMemory(absl::string_view text);

// A number of GPUs: "2", "a100:2", "a100:2,v100:1". Their types are ignored.
absl::StatusOr<uint32_t> ParseSlurmGpus(absl::string_view text);

// The number of GPUs in a list of generic resources: "gpu", "gpu:2", "gpu:a100:2", "none". Other
// resources are errors.
absl::StatusOr<uint32_t> ParseSlurmGres(absl::string_view text);

// A signal: "TERM", "SIGTERM", "15".
absl::StatusOr<int> ParseSlurmSignal(absl::string_view text);

// The value of --signal: "USR1", "USR1@90", "B:USR2@90", "R:USR1". Without a time 60 s.
struct SlurmWarning {
  int signal = 0;
  absl::Duration before;
  // The script gets it, and not the tasks of its steps.
  bool script = false;
};
absl::StatusOr<SlurmWarning> ParseSlurmWarning(absl::string_view text);

// The most elements of an array, and the largest index.
inline constexpr uint32_t kMaxArrayElements = 1000;
inline constexpr uint32_t kMaxArrayIndex = 3'999'999;
// The value of --array: "0-9", "1,3,5-9:2", "0-9%3".
struct SlurmArray {
  // Ascending.
  std::vector<uint32_t> indices;
  // 0: all.
  uint32_t at_once = 0;
};
absl::StatusOr<SlurmArray> ParseSlurmArray(absl::string_view text);

// The value of --constraint as Placement.labels: "a&b" is {"a", "b"}, "a|b" is {"a|b"}. Operators
// are read from the left to the right. Brackets, parentheses and counts are errors.
absl::StatusOr<std::vector<std::string>> ParseSlurmConstraint(absl::string_view text);

// The value of --nodelist or --exclude: "n[1-3],m7", each name once.
absl::StatusOr<std::vector<std::string>> ParseSlurmHosts(absl::string_view text);

// Splits at commas outside of quotes, and removes the quotes: "A=1,B='x,y'".
std::vector<std::string> SplitQuoted(absl::string_view text);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_OPTION_VALUES_H_
