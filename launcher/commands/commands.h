// Every subcommand's table entry; one file each.
#ifndef CADRE_LAUNCHER_COMMANDS_COMMANDS_H_
#define CADRE_LAUNCHER_COMMANDS_COMMANDS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/flags/command.h"

namespace cadre {

// In the order in which the help lists them.
const std::vector<Command>& AllCommands();

Command RunCommand();
Command ServerCommand();
Command StatusCommand();
Command WhyCommand();
Command TimelineCommand();
Command CancelCommand();
Command ValidateCommand();
Command DoctorCommand();
Command SlurmCommand();
Command TokenCommand();
Command CompletionCommand();
Command ManCommand();
Command VersionCommand();

inline constexpr char kVersion[] = "0.1.0";

// Says "cadre: TEXT" on standard error and returns `status`.
int Fail(int status, absl::string_view text);

// Writes to standard output, whole; returns 0, or 70 when it cannot be written.
int Print(absl::string_view text);

// This process's environment.
std::map<std::string, std::string> ReadEnvironment();

std::string HostName();

}  // namespace cadre

#endif  // CADRE_LAUNCHER_COMMANDS_COMMANDS_H_
