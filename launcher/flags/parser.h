// Parses a subcommand's arguments by its table. The only place that uses CLI11.
#ifndef CADRE_LAUNCHER_FLAGS_PARSER_H_
#define CADRE_LAUNCHER_FLAGS_PARSER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/flags/command.h"

namespace cadre::launcher {

// INVALID_ARGUMENT: one line that names the error, and the nearest flag if one is close. `--help`
// and `-h` are returned as the flag "help", `--help-all` as "help-all".
absl::StatusOr<Parsed> ParseArguments(const Command& command,
                                      const std::vector<std::string>& arguments);

// The text of `cadre COMMAND --help`, or of --help-all. If the command has `everyday` flags, --help
// shows only these; --help-all shows the properties of --set too. Lines have 100 columns at most.
std::string HelpText(const Command& command, bool all = false);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_PARSER_H_
