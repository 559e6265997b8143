// Command lines in the syntax of Slurm's commands, which is that of getopt_long: "-N2", "-N 2",
// "-lu", "--nodes=2", "--nodes 2", and any beginning of a long name that is not ambiguous. Pure.
#ifndef CADRE_LAUNCHER_SLURM_OPTION_PARSER_H_
#define CADRE_LAUNCHER_SLURM_OPTION_PARSER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {

// Whether an option has a value. An optional one belongs to the same word as the option:
// "--exclusive=user", "-K1".
enum class OptionValue { kNone, kRequired, kOptional };

struct Option {
  // Without the leading dashes. Empty: the option has a short name only.
  std::string name;
  // '\0': the option has a long name only.
  char short_name = '\0';
  OptionValue value = OptionValue::kNone;
};

// An option of a command line, as it was given.
struct GivenOption {
  // The long name in full; the short one if that is the only one.
  std::string name;
  // Empty if no value was given.
  std::string value;
  bool has_value = false;
  // How an error names the option: "-N", "--nodes".
  std::string place;
};

struct ParsedOptions {
  // In the order in which they were given.
  std::vector<GivenOption> options;
  // The words that belong to no option.
  std::vector<std::string> rest;
};

enum class AfterFirstWord {
  // The first word that belongs to no option ends the options, as with sbatch and srun, whose
  // program has options of its own.
  kAllWords,
  // Options may follow it, as with squeue and scancel.
  kOptionsToo,
};

// "--" ends the options. INVALID_ARGUMENT: one line as that of getopt_long, without the name of the
// program; for an unknown option with the nearest one, if one is close.
absl::StatusOr<ParsedOptions> ParseOptions(const std::vector<std::string>& arguments,
                                           const std::vector<Option>& table,
                                           AfterFirstWord after = AfterFirstWord::kAllWords);

// Returns the option of this name that was given last, as it is the one that counts; null: none.
const GivenOption* FindOption(const ParsedOptions& parsed, absl::string_view name);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_OPTION_PARSER_H_
