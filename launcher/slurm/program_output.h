// Runs one of Slurm's commands to its end.
#ifndef CADRE_LAUNCHER_SLURM_PROGRAM_OUTPUT_H_
#define CADRE_LAUNCHER_SLURM_PROGRAM_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre::launcher {

struct ProgramOutput {
  // As a shell gives it: 128 + signal for one that was killed.
  int status = 0;
  std::string standard_output;
  std::string standard_error;
};

// Waits for the program, which gets no standard input. Blocks; thread safe.
//   NOT_FOUND          there is no such program on PATH
//   DEADLINE_EXCEEDED  it did not end within `timeout`, and was killed
absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& argv,
                                         absl::Duration timeout);

// Its standard error, as one line of at most 1 KiB.
std::string ErrorLine(const ProgramOutput& output);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_PROGRAM_OUTPUT_H_
