// cadre token new: creates the secret that a job's nodes share, or derives a user's or a read-only
// token from a cluster's.
#include "base/token.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/cluster/users.h"
#include "base/bearer_token.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

constexpr char kRoot[] = "root";
constexpr uint32_t kDaysMax = 3650;

std::vector<Flag> Flags() {
  return {
      {"force", "", "Replace FILE where it exists."},
      {"user", "NAME",
       "Make a token with which this user may submit, cancel and read only their own jobs."},
      {"read-only", "", "Make a token that may read jobs, nodes and metrics, and change nothing."},
      {"token-file", "FILE",
       "The cluster's token, from which a user's or read-only token is made."},
      {"days", "N", "Days until a user's or read-only token expires [30]."},
      {"server", "HOST[:PORT][,...]",
       "The server that a user's or read-only token is for [127.0.0.1:29400]."},
      {"tls-dir", "DIR", "Mutual TLS with the server, with ca.pem, cert.pem and key.pem in DIR."},
      {"insecure", "", "Ask the server in clear text, also off loopback."},
      {"allow-root", "",
       "With --user root: root's jobs have all rights where an agent runs them."}};
}

// A token, and a description of it; empty for a secret without an owner.
struct NewToken {
  std::string token;
  std::string description;
};

// Root's jobs may do anything wherever they run. Other users may exist on the nodes only.
absl::Status CheckUser(const std::string& name, bool root_too) {
  if (!IsUserName(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--user: '", name,
        "' is not a valid user name: use 1 to 64 letters, digits, '.', '-', '_' and '@'"));
  }
  const absl::StatusOr<agent::UserEntry> user = agent::FindUser(name);
  if (name == kRoot || (user.ok() && user->uid == 0)) {
    if (root_too) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--user ", name,
                     ": jobs submitted with this token have all rights on every node whose agent "
                     "runs root's (--user root); add --allow-root if that is meant"));
  }
  if (!user.ok()) {
    Notice(absl::StrCat("--user ", name, ": ", user.status().message(),
                        "; the token works on nodes that have that user"));
  }
  return absl::OkStatus();
}

// Reads the cluster's own token.
absl::StatusOr<std::string> ReadSecret(const std::string& file) {
  absl::StatusOr<std::string> secret = ReadTokenFile(file);
  if (!secret.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--token-file: ", secret.status().message()));
  }
  for (const char* kind : {"user:", "read:", "part:"}) {
    if (!absl::StartsWith(*secret, kind)) continue;
    return absl::InvalidArgumentError(
        "--token-file: this token was itself made from the cluster's token; name the cluster's own "
        "token");
  }
  return secret;
}

absl::StatusOr<absl::Time> EndOf(const Parsed& parsed) {
  const absl::Time now = absl::Now();
  const auto given = parsed.Get("days");
  if (!given.has_value()) return now + kTokenLifetime;
  const absl::StatusOr<uint32_t> days = ParseCount(*given);
  if (days.ok() && *days >= 1 && *days <= kDaysMax) return now + absl::Hours(24) * *days;
  return absl::InvalidArgumentError(
      absl::StrCat("--days: expected a number from 1 to ", kDaysMax, ", got '", *given, "'"));
}

// Asks the server for which state the token must be made.
absl::StatusOr<uint64_t> AskServerId(const Parsed& parsed) {
  ASSIGN_OR_RETURN(const Settings settings, ClientSettings(parsed, Flags()));
  ASSIGN_OR_RETURN(const auto client, ControlClient::Connect(settings));
  const absl::StatusOr<v1::ListNodesReply> reply = client->Nodes();
  if (!reply.ok()) {
    return absl::Status(reply.status().code(),
                        absl::StrCat("a token is valid for the state of one server, and that "
                                     "server cannot be asked for its id: ",
                                     reply.status().message()));
  }
  if (reply->has_server_id()) return reply->server_id();
  return absl::UnavailableError(
      "the server runs an earlier version of Cadre, which cannot tell the id of its state: upgrade "
      "the server");
}

absl::StatusOr<NewToken> Make(const Parsed& parsed) {
  const bool user = parsed.Has("user"), reader = parsed.Has("read-only");
  if (parsed.Has("allow-root") && !user) {
    return absl::InvalidArgumentError("--allow-root needs --user");
  }
  if (user && reader) {
    return absl::InvalidArgumentError(
        "--read-only: a read-only token belongs to no user; leave out --read-only or --user");
  }
  if (!user && !reader && !parsed.Has("token-file")) {
    if (!parsed.Has("days")) return NewToken{RandomToken(), ""};
    return absl::InvalidArgumentError(
        "--days: a new cluster token does not expire; --days is for --user and --read-only");
  }
  if (!parsed.Has("token-file") || !(user || reader)) {
    return absl::InvalidArgumentError(
        "a user's token, or a read-only one, is made from the cluster's: give --user or "
        "--read-only together with --token-file");
  }
  const std::string name = parsed.GetOr("user", "");
  ASSIGN_OR_RETURN(const std::string secret, ReadSecret(parsed.GetOr("token-file", "")));
  if (user) RETURN_IF_ERROR(CheckUser(name, parsed.Has("allow-root")));
  ASSIGN_OR_RETURN(const absl::Time end, EndOf(parsed));
  ASSIGN_OR_RETURN(const uint64_t server_id, AskServerId(parsed));
  return NewToken{
      user ? UserToken(secret, server_id, name, end) : ReadToken(secret, server_id, end),
      absl::StrCat(user ? "of user " : "read-only", name, ", until ",
                   absl::FormatTime("%Y-%m-%d %H:%M UTC", end, absl::UTCTimeZone()))};
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
  const absl::StatusOr<NewToken> made = Make(parsed);
  if (!made.ok()) return Fail(ControlExit(made.status()), made.status().message());
  const absl::Status written =
      parsed.Has("force") ? WriteTokenFile(path, made->token) : CreateTokenFile(path, made->token);
  if (absl::IsAlreadyExists(written)) {
    return Fail(kExitUsage,
                absl::StrCat(path,
                             " exists already and is left as it is; name another file, or "
                             "replace it with --force"));
  }
  if (absl::IsResourceExhausted(written) || absl::IsUnavailable(written)) {
    return Fail(kExitUnavailable, written.message());
  }
  if (!written.ok()) {
    return Fail(kExitUsage,
                absl::StrCat(written.message(),
                             "; name a file in a directory that exists and that you may write to"));
  }
  return made->description.empty() ? 0 : Print(absl::StrCat(path, ": ", made->description, "\n"));
}

}  // namespace

Command TokenCommand() {
  Command command;
  command.name = "token";
  command.summary = "Make a token file, readable by you only.";
  command.positionals = "new FILE";
  command.min_positionals = 1;
  command.max_positionals = 2;
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
