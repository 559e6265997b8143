// Reads a subcommand's arguments by its table. The only place that knows CLI11.
#ifndef CADRE_LAUNCHER_FLAGS_PARSER_H_
#define CADRE_LAUNCHER_FLAGS_PARSER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/flags/command.h"

namespace cadre::launcher {

// INVALID_ARGUMENT: one line that names what is wrong, with the nearest flag where one is near.
// `--help` and `-h` are seen as the flag "help", `--help-all` as "help-all".
absl::StatusOr<Parsed> ParseArguments(const Command& command,
                                      const std::vector<std::string>& arguments);

// The text of `cadre COMMAND --help`, which shows the flags of an ordinary day where the command
// names some, or of --help-all.
std::string HelpText(const Command& command, bool all = false);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_PARSER_H_
