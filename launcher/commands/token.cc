// cadre token new: makes the secret that a job's nodes share.
#include "base/token.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launcher/commands/commands.h"

namespace cadre {
namespace {

int Run(const Parsed& parsed) {
  if (parsed.rest[0] != "new") {
    return Fail(kExitUsage,
                absl::StrCat("expected 'cadre token new FILE', got '", parsed.rest[0], "'"));
  }
  const std::string& path = parsed.rest[1];
  const absl::Status written = parsed.Has("force") ? WriteTokenFile(path, RandomToken())
                                                   : CreateTokenFile(path, RandomToken());
  if (absl::IsAlreadyExists(written)) {
    return Fail(kExitUsage,
                absl::StrCat(path,
                             " exists already and is left as it is; name another file, or "
                             "replace it with --force"));
  }
  if (!written.ok()) return Fail(kExitInternal, written.message());
  return 0;
}

}  // namespace

Command TokenCommand() {
  Command command;
  command.name = "token";
  command.summary = "Make a token file, readable by you only.";
  command.positionals = "new FILE";
  command.min_positionals = command.max_positionals = 2;
  command.flags = {{"force", "", "Replace FILE where it exists."}};
  command.run = Run;
  return command;
}

}  // namespace cadre
