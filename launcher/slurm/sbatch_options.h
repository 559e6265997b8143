// The options of sbatch: in the "#SBATCH" lines of a batch script, in SBATCH_* variables and on the
// command line; and what becomes of each of them in a cluster of Cadre. sbatch_job.h makes a job of
// them. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SBATCH_OPTIONS_H_
#define CADRE_LAUNCHER_SLURM_SBATCH_OPTIONS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/slurm/option_parser.h"

namespace cadre::launcher {

enum class SbatchEffect {
  // It has its effect.
  kMapped,
  // What it asks for is done anyway.
  kSame,
  // It is known and has no effect; a line says so.
  kAccepted,
  // Without it something else would run, or elsewhere: an error says so.
  kRefused,
};

struct SbatchFlag {
  const char* name;
  char short_name;
  OptionValue value;
  SbatchEffect effect;
  // The variable that stands for it; nullptr: there is none.
  const char* variable;
  // Its value as the help shows it; nullptr: it has none, or is not in the help.
  const char* form;
  // Of kMapped what it does, for the help; of kAccepted why it has no effect; of kRefused why it is
  // refused, and what to do.
  const char* text;
};

// All options of sbatch in Slurm 23.02.
const std::vector<SbatchFlag>& SbatchFlags();
// The same, as ParseOptions() takes them.
const std::vector<Option>& SbatchTable();

// The options of one job.
struct SbatchOptions {
  // By long name. Options without an effect are left out.
  std::map<std::string, GivenOption> given;
  // What is done differently than asked for: one line each.
  std::vector<std::string> notices;

  bool Has(const std::string& name) const { return given.count(name) != 0; }
  // Null: it was not given.
  const GivenOption* Find(const std::string& name) const {
    const auto found = given.find(name);
    return found == given.end() ? nullptr : &found->second;
  }
};

// Whether the text is a batch script that sbatch would take. `file` names it in errors.
// INVALID_ARGUMENT: it is empty or has no "#!", or has NUL characters or DOS line breaks.
absl::Status CheckBatchScript(absl::string_view script, absl::string_view file);

// The options in the script's "#SBATCH" lines, which all come before the first line that is neither
// a comment nor blank. A notice says if it has lines for other schedulers. INVALID_ARGUMENT:
// "FILE:LINE: why".
absl::StatusOr<std::vector<GivenOption>> ReadSbatchLines(absl::string_view script,
                                                         absl::string_view file,
                                                         std::vector<std::string>* notices);

// The options for which SBATCH_* variables stand.
std::vector<GivenOption> ReadSbatchVariables(const std::map<std::string, std::string>& environment);

// The options of the job. Those of the command line win over those of the environment, and these
// over those of the script. INVALID_ARGUMENT: an option is refused.
absl::StatusOr<SbatchOptions> CombineSbatchOptions(const std::vector<GivenOption>& script,
                                                   const std::vector<GivenOption>& environment,
                                                   const std::vector<GivenOption>& command_line);

// The text of `sbatch --help`, and the short one of `sbatch --usage`.
std::string SbatchHelp();
std::string SbatchUsage();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SBATCH_OPTIONS_H_
