// cadre version.
#include "base/version.h"

#include "absl/strings/str_cat.h"
#include "launcher/commands/commands.h"

namespace cadre::launcher {

Command VersionCommand() {
  Command command;
  command.name = "version";
  command.summary = "Print the version.";
  command.run = [](const Parsed&) { return Print(absl::StrCat("cadre ", kVersion, "\n")); };
  return command;
}

}  // namespace cadre::launcher
