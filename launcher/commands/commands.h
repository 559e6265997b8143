// Every subcommand's table entry; one file each.
#ifndef CADRE_LAUNCHER_COMMANDS_COMMANDS_H_
#define CADRE_LAUNCHER_COMMANDS_COMMANDS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/commands/job_source.h"
#include "launcher/flags/command.h"
#include "launcher/flags/settings.h"

namespace cadre::launcher {

// In the order in which the help lists them.
const std::vector<Command>& AllCommands();
// That one alone; nullopt: there is none of that name.
std::optional<Command> FindCommand(absl::string_view name);

Command RunCommand();
Command ServerCommand();
Command ClusterAgentCommand();
Command SubmitCommand();
Command StatusCommand();
Command WhyCommand();
Command TimelineCommand();
Command DashboardCommand();
Command LogsCommand();
Command StacksCommand();
Command CancelCommand();
Command NodesCommand();
Command DrainCommand();
Command UndrainCommand();
Command ValidateCommand();
Command DoctorCommand();
Command SlurmCommand();
Command TokenCommand();
Command CompletionCommand();
Command ManCommand();
Command VersionCommand();

// Says "cadre: LINE" on standard error for each line of the text, and returns `status`.
int Fail(int status, absl::string_view text);

// Whether standard output is a terminal that understands more than lines; and colours, which
// NO_COLOR refuses.
bool OnTerminal();
bool ShowsColor();

// Writes to standard output, whole; returns 0, or says why it cannot be written and returns 70.
int Print(absl::string_view text);

// --output, of commands that print plain text or JSON, and whether its value asks for JSON.
// INVALID_ARGUMENT: it is neither "plain" nor "json".
Flag OutputFlag();
absl::StatusOr<bool> AsksForJson(absl::string_view output);

// For bash, zsh or fish; the exit status.
int PrintCompletion(const std::string& shell);

// The settings of a command: command line, environment and this machine's configuration file
// (CADRE_CONFIG, or /etc/cadre/cadre.yaml); `section` and `in_file` are the file's for it.
absl::StatusOr<Settings> MachineSettings(const Parsed& parsed, const std::vector<Flag>& flags,
                                         absl::string_view section,
                                         const std::vector<Flag>& in_file);
// For a command that asks a server, with ControlFlags() among its flags.
absl::StatusOr<Settings> ClientSettings(const Parsed& parsed, const std::vector<Flag>& flags);

// The job that the command line names; where it names none the newest, which a line on standard
// error then says.
absl::StatusOr<JobSource> OpenJob(const Parsed& parsed, const Settings& settings);

// This process's environment.
std::map<std::string, std::string> ReadEnvironment();

std::string HostName();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_COMMANDS_H_
