// cadre token new: makes the secret that a job's nodes share, or from a cluster's a user's.
#include "base/token.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bearer_token.h"
#include "base/exit_codes.h"
#include "launcher/commands/commands.h"

namespace cadre {
namespace {

absl::StatusOr<std::string> Make(const Parsed& parsed) {
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
  return UserToken(*secret, user);
}

int Run(const Parsed& parsed) {
  if (parsed.rest[0] != "new") {
    return Fail(kExitUsage,
                absl::StrCat("expected 'cadre token new FILE', got '", parsed.rest[0], "'"));
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
  command.min_positionals = command.max_positionals = 2;
  command.flags = {
      {"force", "", "Replace FILE where it exists."},
      {"user", "NAME", "A token of this user, who may submit, cancel and read own jobs alone."},
      {"token-file", "FILE", "The cluster's token, from which a user's is made."}};
  command.run = Run;
  return command;
}

}  // namespace cadre
