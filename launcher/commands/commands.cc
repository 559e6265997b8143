// Functions that commands share, the table of all commands, and the commands about cadre itself:
// cadre completion, man and version.
#include "launcher/commands/commands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/attach/control_client.h"
#include "launcher/flags/config_file.h"
#include "launcher/flags/scripts.h"

extern char** environ;

namespace cadre::launcher {

namespace {

std::string& NoticeName() {
  static auto* const name = new std::string("cadre");
  return *name;
}

}  // namespace

void SetNoticeName(absl::string_view name) { NoticeName() = std::string(name); }

void Notice(absl::string_view text) {
  std::string lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::StrAppend(&lines, NoticeName(), ": ", EscapeControl(line), "\n");
  }
  fwrite(lines.data(), 1, lines.size(), stderr);
  fflush(stderr);
}

int Fail(int status, absl::string_view text) {
  Notice(text);
  return status;
}

Flag OutputFlag() { return {"output", "plain|json", "Output format [plain]."}; }

absl::StatusOr<bool> AsksForJson(absl::string_view output) {
  if (output == "json" || output == "plain") return output == "json";
  return absl::InvalidArgumentError(
      absl::StrCat("--output: expected plain or json, got '", output, "'"));
}

bool OnTerminal() {
  const char* term = getenv("TERM");
  return isatty(STDOUT_FILENO) && term != nullptr && absl::string_view(term) != "dumb";
}

bool ShowsColor() {
  const char* no_color = getenv("NO_COLOR");
  return OnTerminal() && (no_color == nullptr || no_color[0] == '\0');
}

int Print(absl::string_view text) {
  const bool written = fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (fflush(stdout) == 0 && written) return 0;
  return Fail(kExitInternal, absl::StrCat("cannot write to standard output: ", strerror(errno)));
}

absl::StatusOr<Settings> MachineSettings(const Parsed& parsed, const std::vector<Flag>& flags,
                                         absl::string_view section,
                                         const std::vector<Flag>& in_file) {
  std::map<std::string, std::string> environment = ReadEnvironment();
  const auto config = environment.find("CADRE_CONFIG");
  absl::StatusOr<std::map<std::string, Setting>> file =
      ReadConfig(config == environment.end() ? "" : config->second, section, in_file);
  RETURN_IF_ERROR(file.status());
  return Settings(parsed, std::move(environment), flags, *std::move(file));
}

absl::StatusOr<Settings> ClientSettings(const Parsed& parsed, const std::vector<Flag>& flags) {
  return MachineSettings(parsed, flags, "client", ControlFlags());
}

absl::StatusOr<JobSource> OpenJob(const Parsed& parsed, const Settings& settings) {
  absl::StatusOr<JobSource> source =
      JobSource::Open(settings, parsed.rest.empty() ? "" : parsed.rest[0]);
  if (source.ok() && !source->chosen().empty()) Notice(source->chosen());
  return source;
}

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

namespace {

// By name, so that only the command that is called is constructed.
struct Entry {
  const char* name;
  Command (*make)();
};

constexpr Entry kCommands[] = {
    {"run", RunCommand},
    {"server", ServerCommand},
    {"agent", ClusterAgentCommand},
    {"submit", SubmitCommand},
    {"status", StatusCommand},
    {"why", WhyCommand},
    {"logs", LogsCommand},
    {"stacks", StacksCommand},
    {"timeline", TimelineCommand},
    {"dashboard", DashboardCommand},
    {"cancel", CancelCommand},
    {"hold", HoldCommand},
    {"release", ReleaseCommand},
    {"requeue", RequeueCommand},
    {"update", UpdateCommand},
    {"signal", SignalCommand},
    {"history", HistoryCommand},
    {"usage", UsageCommand},
    {"nodes", NodesCommand},
    {"drain", DrainCommand},
    {"undrain", UndrainCommand},
    {"token", TokenCommand},
    {"validate", ValidateCommand},
    {"slurm", SlurmCommand},
    {"doctor", DoctorCommand},
    {"completion", CompletionCommand},
    {"man", ManCommand},
    {"version", VersionCommand},
};

constexpr Entry kSlurmCommands[] = {
    {"sbatch", SbatchCommand}, {"srun", SrunCommand},   {"scancel", ScancelCommand},
    {"squeue", SqueueCommand}, {"sacct", SacctCommand}, {"scontrol", ScontrolCommand},
    {"sinfo", SinfoCommand},
};

}  // namespace

const std::vector<Command>& AllCommands() {
  static const auto* const commands = [] {
    auto* const all = new std::vector<Command>;
    for (const Entry& entry : kCommands) all->push_back(entry.make());
    return all;
  }();
  return *commands;
}

std::optional<Command> FindCommand(absl::string_view name) {
  for (const Entry& entry : kCommands) {
    if (entry.name == name) return entry.make();
  }
  for (const Entry& entry : kSlurmCommands) {
    if (entry.name == name) return entry.make();
  }
  return std::nullopt;
}

std::vector<std::string> SlurmNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kSlurmCommands) names.emplace_back(entry.name);
  return names;
}

// cadre completion and cadre man.

namespace {

int RunCompletion(const Parsed& parsed) { return PrintCompletion(parsed.rest[0]); }

}  // namespace

int PrintCompletion(const std::string& shell) {
  if (shell == "bash") return Print(BashCompletion(AllCommands()));
  if (shell == "zsh") return Print(ZshCompletion(AllCommands()));
  if (shell == "fish") return Print(FishCompletion(AllCommands()));
  return Fail(kExitUsage, absl::StrCat("expected bash, zsh or fish, got '", shell, "'"));
}

Command CompletionCommand() {
  Command command;
  command.name = "completion";
  command.summary = "Print a completion script for bash, zsh or fish.";
  command.positionals = "SHELL";
  command.min_positionals = command.max_positionals = 1;
  command.run = RunCompletion;
  return command;
}

Command ManCommand() {
  Command command;
  command.name = "man";
  command.summary = "Print the manual page: cadre man | man -l -";
  command.run = [](const Parsed&) { return Print(ManualPage(AllCommands())); };
  return command;
}

// cadre version.

Command VersionCommand() {
  Command command;
  command.name = "version";
  command.summary = "Print the version.";
  command.run = [](const Parsed&) { return Print(absl::StrCat("cadre ", kVersion, "\n")); };
  return command;
}

}  // namespace cadre::launcher
