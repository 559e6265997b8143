#include "launcher/cadre_main.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "launcher/attach/security.h"
#include "launcher/commands/commands.h"
#include "launcher/environment/signals.h"
#include "launcher/flags/nearest.h"
#include "launcher/flags/parser.h"

namespace cadre::launcher {
namespace {

std::string Overview() {
  std::string text =
      "cadre launches distributed training and keeps it alive.\n\n"
      "  cadre run --standalone --nproc-per-node 2 train.py    two workers here\n"
      "  cadre run --nnodes 2 --rdzv-endpoint head --token-file job.token train.py\n"
      "                                                        the same line on two nodes\n"
      "  cadre run job.yaml                                    from a file\n\n"
      "Commands:\n";
  for (const Command& command : AllCommands()) {
    std::string name = command.name;
    name.resize(12, ' ');
    absl::StrAppend(&text, "  ", name, command.summary, "\n");
  }
  return text + "\n'cadre help COMMAND' says more.\n";
}

// Maps the commands of other launchers and schedulers to Cadre's.
std::string Synonym(const std::string& word) {
  static const auto* const synonyms = new std::map<std::string, std::string>{
      {"stop", "cancel"},  {"kill", "cancel"}, {"rm", "cancel"},    {"delete", "cancel"},
      {"ps", "status"},    {"list", "status"}, {"ls", "status"},    {"jobs", "status"},
      {"queue", "status"}, {"start", "run"},   {"launch", "run"},   {"exec", "run"},
      {"log", "logs"},     {"tail", "logs"},   {"describe", "why"}, {"check", "validate"},
      {"lint", "validate"}};
  const auto found = synonyms->find(word);
  return found == synonyms->end() ? "" : found->second;
}

int FailUnknownCommand(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : AllCommands()) names.push_back(command.name);
  std::string nearest = Synonym(name);
  if (nearest.empty()) nearest = Nearest(name, names);
  return Fail(
      kExitUsage,
      absl::StrCat(absl::StartsWith(name, "-") ? "unknown flag '" : "unknown command '", name, "'",
                   nearest.empty() ? "; see 'cadre --help'"
                                   : absl::StrCat("; did you mean '", nearest, "'?")));
}

// Runs a command that parses its arguments itself.
int RunAs(const Command& command, std::vector<std::string> arguments) {
  const std::vector<std::string> slurm = SlurmNames();
  if (std::find(slurm.begin(), slurm.end(), command.name) != slurm.end()) {
    SetNoticeName(command.name);
  }
  Parsed all;
  all.rest = std::move(arguments);
  return command.run(all);
}

// Runs `cadre help [COMMAND]`, which prints the same as `cadre COMMAND --help`.
int Help(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") return Print(Overview());
  const std::optional<Command> command = FindCommand(words[0]);
  if (!command.has_value()) return FailUnknownCommand(words[0]);
  if (words.size() > 1) {
    return Fail(kExitUsage,
                absl::StrCat("unexpected argument '", words[1], "'; usage: cadre help [COMMAND]"));
  }
  if (command->own_syntax) return RunAs(*command, {"--help"});
  return Print(HelpText(*command));
}

int Dispatch(const std::vector<std::string>& arguments) {
  const std::string name = arguments.empty() ? "--help" : arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    return Help({arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end()});
  }
  const std::string wanted = name == "--version" ? "version" : name;
  const std::optional<Command> command = FindCommand(wanted);
  if (!command.has_value()) return FailUnknownCommand(wanted);
  if (command->own_syntax) return RunAs(*command, {arguments.begin() + 1, arguments.end()});
  const absl::StatusOr<Parsed> parsed =
      ParseArguments(*command, {arguments.begin() + 1, arguments.end()});
  if (!parsed.ok()) return Fail(kExitUsage, parsed.status().message());
  if (parsed->Has("help-all")) return Print(HelpText(*command, /*all=*/true));
  if (parsed->Has("help")) return Print(HelpText(*command));
  return command->run(*parsed);
}

// If the program was run under a name of a command of Slurm, as through a link of that name, this
// name is the command.
std::vector<std::string> ArgumentsOf(int argc, char** argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const std::string program = argc > 0 ? argv[0] : "";
  const std::string name = program.substr(program.rfind('/') + 1);
  const std::vector<std::string> names = SlurmNames();
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    arguments.insert(arguments.begin(), name);
  }
  return arguments;
}

// If a standard descriptor is closed, the next file or socket would get its number, and output
// would go there.
void OpenStandardDescriptors() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) close(fd);
}

// Protobuf accepts strings only as UTF-8.
absl::Status CheckArguments(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (IsUtf8(argument)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("argument '", absl::CHexEscape(argument), "' is not UTF-8 text; ",
                     "give the program such names by other means, a file for instance"));
  }
  return absl::OkStatus();
}

// Must run before any thread is started, so that every thread inherits the signal mask: `run`,
// `server`, `agent` and `dashboard` wait for signals explicitly. If a reader closes its pipe, or a
// file size limit is reached, writing must fail with an error instead of ending the launcher by a
// signal.
void ArrangeSignals() {
  BlockOnly({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1});
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

// std::thread throws if no thread can be started, and no caller can continue without it.
[[noreturn]] void EndWithoutThread() {
  try {
    if (const std::exception_ptr cause = std::current_exception()) std::rethrow_exception(cause);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      _exit(Fail(kExitInternal,
                 absl::StrCat("cannot start a thread: ", ErrnoText(error.code().value()),
                              "; raise the limit of processes (ulimit -u, or the container's "
                              "pids.max)")));
    }
  } catch (...) {
  }
  abort();
}

}  // namespace

int CadreMain(int argc, char** argv) {
  // Debian's Abseil is built to look for deadlocks at every lock, in one graph for all threads.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  std::set_terminate(EndWithoutThread);
  OpenStandardDescriptors();
  const std::vector<std::string> arguments = ArgumentsOf(argc, argv);
  const absl::Status checked = CheckArguments(arguments);
  if (!checked.ok()) return Fail(kExitUsage, checked.message());
  // Other commands end at Ctrl-C by default.
  if (!arguments.empty() && (arguments[0] == "run" || arguments[0] == "server" ||
                             arguments[0] == "agent" || arguments[0] == "dashboard")) {
    ArrangeSignals();
  }
  const int status = Dispatch(arguments);
  EndLoopbackTokens();
  return status;
}

}  // namespace cadre::launcher
