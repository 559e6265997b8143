// Names of output files as sbatch and srun of Slurm take them: "slurm-%j.out", "log/%x-%4t.txt".
// Pure.
#ifndef CADRE_BASE_OUTPUT_PATTERN_H_
#define CADRE_BASE_OUTPUT_PATTERN_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// The process whose output goes to the file.
struct OutputPatternFields {
  std::string job_id;    // %j; of an element of an array its own
  std::string step_id;   // %s: "0"; of the batch script "batch", which %J leaves out
  std::string job_name;  // %x
  std::string user;      // %u
  std::string host;      // %N, without its domain
  uint32_t node = 0;     // %n: the number of the node in the job
  uint32_t rank = 0;     // %t
  // %A and %a: the id of the array and the index in it. They are empty if the job is no element of
  // an array; then %A is the job's id and %a is 4294967294.
  std::string array_id = {};
  std::string array_index = {};
};

// Replaces %j, %J, %s, %A, %a, %x, %u, %N, %n, %t and %%. Digits after the '%' are the least width
// of a number, which gets zeros in front: "%4t". Other texts stay as they are, and a pattern with a
// backslash stays so as a whole, without its backslashes.
std::string ExpandOutputPattern(absl::string_view pattern, const OutputPatternFields& fields);

// Whether processes of a job on different nodes write to the same file.
bool IsSharedByNodes(absl::string_view pattern);

}  // namespace cadre

#endif  // CADRE_BASE_OUTPUT_PATTERN_H_
