// The command line of cadre submit, which has flags of its own and those of sbatch. Pure.
#ifndef CADRE_LAUNCHER_COMMANDS_SUBMIT_LINE_H_
#define CADRE_LAUNCHER_COMMANDS_SUBMIT_LINE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/flags/command.h"
#include "launcher/slurm/option_parser.h"

namespace cadre::launcher {

struct SubmitLine {
  // The command's own flags, also "help" and "help-all".
  Parsed own;
  // Those of sbatch.
  std::vector<GivenOption> sbatch;
  // What is submitted, and all that follows it.
  std::vector<std::string> rest;
  // "--" precedes it: it is a program and its arguments.
  bool is_program = false;
};

// `own`: the command's own flags. --output is its own with the values "plain" and "json", otherwise
// sbatch's. INVALID_ARGUMENT: one line.
absl::StatusOr<SubmitLine> ReadSubmitLine(const std::vector<std::string>& arguments,
                                          const std::vector<Flag>& own);

// Moves the flags that follow a job's file to the others, as only scripts and programs have
// arguments. INVALID_ARGUMENT: there are other words.
absl::Status ReadFlagsAfterFile(const std::vector<Flag>& own, SubmitLine* line);

// All flags, for the help: its own, which are shown first, and those of sbatch with an effect.
std::vector<Flag> WithSbatchFlags(std::vector<Flag> own);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_SUBMIT_LINE_H_
