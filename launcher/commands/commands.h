// The table of subcommands, and functions that they share.
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

// In the order of the help text, which does not list those of SlurmNames().
const std::vector<Command>& AllCommands();
// That one alone; nullopt: there is none of that name.
std::optional<Command> FindCommand(absl::string_view name);

// The commands with the names and the flags of Slurm's: `sbatch`, `srun`, ... This program is each
// of them if it is run under that name.
std::vector<std::string> SlurmNames();

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
Command HoldCommand();
Command ReleaseCommand();
Command RequeueCommand();
Command UpdateCommand();
Command SignalCommand();
Command HistoryCommand();
Command UsageCommand();
Command NodesCommand();
Command DrainCommand();
Command UndrainCommand();
Command ValidateCommand();
Command DoctorCommand();
Command SlurmCommand();
Command TokenCommand();
Command SbatchCommand();
Command SrunCommand();
Command ScancelCommand();
Command SqueueCommand();
Command SacctCommand();
Command ScontrolCommand();
Command SinfoCommand();
Command CompletionCommand();
Command ManCommand();
Command VersionCommand();

// Writes "cadre: LINE" to standard error for each line of the text; in a command of Slurm its own
// name in place of "cadre".
void Notice(absl::string_view text);
void SetNoticeName(absl::string_view name);
// The same for an error that ends the command; returns `status`.
int Fail(int status, absl::string_view text);

// Whether standard output is a terminal that supports more than plain lines; and colours, which
// NO_COLOR turns off.
bool OnTerminal();
bool ShowsColor();

// Writes all of `text` to standard output; returns 0, or writes an error and returns 70.
int Print(absl::string_view text);

// The flag --output of commands that print plain text or JSON, and whether its value selects JSON.
// INVALID_ARGUMENT: it is neither "plain" nor "json".
Flag OutputFlag();
absl::StatusOr<bool> AsksForJson(absl::string_view output);

// Prints the script for bash, zsh or fish; returns the exit status.
int PrintCompletion(const std::string& shell);

// The settings of a command: from the command line, the environment and this machine's
// configuration file (CADRE_CONFIG, or /etc/cadre/cadre.yaml), of which it uses `section` with the
// flags `in_file`.
absl::StatusOr<Settings> MachineSettings(const Parsed& parsed, const std::vector<Flag>& flags,
                                         absl::string_view section,
                                         const std::vector<Flag>& in_file);
// For a command that calls a server, with ControlFlags() among its flags.
absl::StatusOr<Settings> ClientSettings(const Parsed& parsed, const std::vector<Flag>& flags);

// Opens the job that the command line names. If it names none, opens the newest and prints its name
// on standard error.
absl::StatusOr<JobSource> OpenJob(const Parsed& parsed, const Settings& settings);

// This process's environment.
std::map<std::string, std::string> ReadEnvironment();

std::string HostName();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_COMMANDS_H_
