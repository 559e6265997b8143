// cadre token new: makes the secret that a job's nodes share, or from a cluster's a user's.
#include "base/token.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/cluster/part_start.h"
#include "base/bearer_token.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "launcher/commands/commands.h"

namespace cadre::launcher {
namespace {

constexpr char kRoot[] = "root";

// Root's jobs may do anything wherever they run. Other users may be the nodes' alone.
absl::Status CheckUser(const std::string& name, bool root_too) {
  const absl::StatusOr<agent::UserEntry> user = agent::FindUser(name);
  if (name == kRoot || (user.ok() && user->uid == 0)) {
    if (root_too) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--user ", name,
                     ": jobs submitted with this token have all rights on every node whose agent "
                     "runs root's (--user root); add --allow-root if that is meant"));
  }
  if (!user.ok()) {
    Fail(0, absl::StrCat("--user ", name, ": ", user.status().message(),
                         "; the token is good where the nodes have that user"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Make(const Parsed& parsed) {
  if (parsed.Has("allow-root") && !parsed.Has("user")) {
    return absl::InvalidArgumentError("--allow-root is for --user");
  }
  if (!parsed.Has("user") && !parsed.Has("token-file")) return RandomToken();
  if (!parsed.Has("user") || !parsed.Has("token-file")) {
    return absl::InvalidArgumentError(
        "a user's token is made from the cluster's: give both --user and --token-file");
  }
  const std::string user = parsed.GetOr("user", "");
  if (!IsUserName(user)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--user: '", user,
                     "' is no user's name: use 1 to 64 letters, digits, '.', '-', '_' and '@'"));
  }
  const absl::StatusOr<std::string> secret = ReadTokenFile(parsed.GetOr("token-file", ""));
  if (!secret.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--token-file: ", secret.status().message()));
  }
  if (absl::StartsWith(*secret, "user:")) {
    return absl::InvalidArgumentError(
        "--token-file: this is a user's token; others are made from the cluster's own");
  }
  RETURN_IF_ERROR(CheckUser(user, parsed.Has("allow-root")));
  return UserToken(*secret, user);
}

int Run(const Parsed& parsed) {
  if (parsed.rest[0] != "new") {
    return Fail(kExitUsage,
                absl::StrCat("unknown action '", parsed.rest[0], "'; usage: cadre token new FILE"));
  }
  if (parsed.rest.size() < 2) {
    return Fail(kExitUsage, "the file is missing; usage: cadre token new FILE");
  }
  const std::string& path = parsed.rest[1];
  const absl::StatusOr<std::string> token = Make(parsed);
  if (!token.ok()) return Fail(kExitUsage, token.status().message());
  const absl::Status written =
      parsed.Has("force") ? WriteTokenFile(path, *token) : CreateTokenFile(path, *token);
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
  command.min_positionals = 1;
  command.max_positionals = 2;
  command.flags = {
      {"force", "", "Replace FILE where it exists."},
      {"user", "NAME", "A token of this user, who may submit, cancel and read own jobs alone."},
      {"token-file", "FILE", "The cluster's token, from which a user's is made."},
      {"allow-root", "", "With --user root: its jobs have all rights where an agent runs them."}};
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
