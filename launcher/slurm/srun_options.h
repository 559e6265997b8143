// The command line and the environment of srun as the spec of a step, or of a job. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SRUN_OPTIONS_H_
#define CADRE_LAUNCHER_SLURM_SRUN_OPTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

struct SrunRequest {
  enum class Answer { kNone, kHelp, kUsage, kVersion };
  // Not kNone: srun prints this text and does nothing else.
  Answer answer = Answer::kNone;

  // Complete, with all paths absolute. The log directory is the default one.
  v1::JobSpec spec;
  // The id of the batch job whose step it is; empty: it is a job of its own.
  std::string within;

  // Whether each stream of the tasks is shown, as it does not go to a file; and of which task
  // alone.
  bool shows_output = true;
  bool shows_errors = true;
  std::optional<uint32_t> only_task;
  // Each line begins with the number of its task.
  bool label = false;
  // Output is shown before its line is complete.
  bool unbuffered = false;
  // The first Ctrl-C cancels the step.
  bool quits_on_interrupt = false;
  bool quiet = false;
  bool verbose = false;

  // For the user, without "srun: ": what is done differently than asked for.
  std::vector<std::string> notices;
};

using Environment = std::map<std::string, std::string>;

// `environment` is that of srun, `directory` the one in which it runs. INVALID_ARGUMENT: the
// message follows "srun: ".
absl::StatusOr<SrunRequest> ReadSrun(const std::vector<std::string>& arguments,
                                     const Environment& environment, const std::string& directory);

// The variables that tasks get of srun's environment, by srun's option --export: "ALL", "NONE",
// "ALL,A=1", "A,B=2". Those that describe another step are left out, and those that are no text are
// too, with a notice.
std::map<std::string, std::string> ExportedVariables(const Environment& environment,
                                                     absl::string_view exported,
                                                     std::vector<std::string>* notices);

// The help of `srun --help`, and the short text of `srun --usage`.
std::string SrunHelp();
std::string SrunUsage();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SRUN_OPTIONS_H_
