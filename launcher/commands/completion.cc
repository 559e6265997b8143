// cadre completion and cadre man.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/commands/commands.h"
#include "launcher/flags/scripts.h"

namespace cadre::launcher {
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

}  // namespace cadre::launcher
