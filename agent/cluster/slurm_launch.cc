#include "agent/cluster/slurm_launch.h"

#include <unistd.h>

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "agent/cluster/slurm_environment.h"
#include "agent/workers/worker_start.h"
#include "base/bearer_token.h"
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

using Variables = google::protobuf::Map<std::string, std::string>;

// Removes variables that the user's shell had where the job was submitted, and that mean something
// else on this node.
void RemoveForeign(const LauncherOptions& options, const v1::StartPart& start, Variables& env) {
  const auto is_foreign = [&](absl::string_view name) {
    for (const absl::string_view own :
         {"XDG_RUNTIME_DIR", "CADRE_SERVER", "CADRE_TOKEN_FILE", "CADRE_INSECURE",
          "CADRE_USER_TOKEN_FILE", "CADRE_STANDS_BY", "CADRE_JOB_ID"}) {
      if (name == own) return true;
    }
    if (name == "CUDA_VISIBLE_DEVICES") return options.has_gpus;
    // Where certificates are required, users have their own.
    if (name == "CADRE_TLS_DIR") return options.tls_dir.empty() || start.spec().has_slurm_step();
    if (absl::StartsWith(name, "CADRE_") && IsReservedVariable(name)) return true;
    // These describe the step in which sbatch was called, or the array that it was an element of.
    return start.spec().has_batch() &&
           (absl::StartsWith(name, "SLURM_STEP") || absl::StartsWith(name, "SLURM_ARRAY_") ||
            name == "SLURM_SRUN_COMM_HOST" || name == "SLURM_LAUNCH_NODE_IPADDR");
  };
  for (auto next = env.begin(); next != env.end();) {
    const auto variable = next++;
    if (is_foreign(variable->first)) env.erase(variable);
  }
}

// The server, and how commands in the script or in a task prove who their user is. A task has the
// token of its agent in CADRE_TOKEN_FILE. Settings of connections would also count for a launcher
// that a task starts (srun cadre run), so tasks get none.
void SetServer(const LauncherOptions& options, const v1::StartPart& start,
               const std::string& directory, bool has_token, Variables& env) {
  env["CADRE_SERVER"] = options.server;
  const std::string token = absl::StrCat(directory, "/", kUserToken);
  if (!start.spec().has_batch()) {
    if (has_token) env["CADRE_USER_TOKEN_FILE"] = token;
    return;
  }
  if (has_token) env["CADRE_TOKEN_FILE"] = token;
  if (options.insecure) env["CADRE_INSECURE"] = "1";
  if (!options.tls_dir.empty() && env.count("CADRE_TLS_DIR") == 0) {
    env["CADRE_TLS_DIR"] = directory;
  }
}

absl::Status WriteUserToken(const LauncherOptions& options, uint64_t server_id,
                            const UserEntry& user, const std::string& name,
                            const std::string& directory) {
  const std::string token =
      UserToken(options.token->Current(), server_id, name, absl::Now() + kUserTokenLifetime);
  RETURN_IF_ERROR(
      WritePrivate(absl::StrCat(directory, "/", kUserToken), absl::StrCat(token, "\n"), user));
  UserEntry self;
  self.uid = geteuid();
  self.gid = getegid();
  return WritePrivate(absl::StrCat(directory, "/", kUserTokenOwner),
                      absl::StrCat(name, "\n", server_id, "\n"), self);
}

}  // namespace

std::vector<std::string> ScriptCommand(absl::string_view script, const std::string& path) {
  absl::string_view line = script.substr(0, script.find('\n'));
  if (!absl::ConsumePrefix(&line, "#!")) line = "";
  line = absl::StripAsciiWhitespace(line);
  if (line.empty()) return {"/bin/sh", path};
  const size_t end = line.find_first_of(" \t");
  std::vector<std::string> command = {std::string(line.substr(0, end))};
  if (end != line.npos) {
    // The kernel does not split it.
    command.emplace_back(absl::StripLeadingAsciiWhitespace(line.substr(end)));
  }
  command.push_back(path);
  return command;
}

absl::StatusOr<v1::JobSpec> PrepareSlurmSpec(const LauncherOptions& options,
                                             const v1::StartPart& start,
                                             const std::vector<uint32_t>& gpus, uint64_t server_id,
                                             const UserEntry& user, const std::string& directory) {
  const bool has_token = server_id != 0 && IsUserName(start.user());
  if (has_token) {
    RETURN_IF_ERROR(WriteUserToken(options, server_id, user, start.user(), directory));
  }
  v1::JobSpec spec = start.spec();
  Variables& env = *spec.mutable_env();
  RemoveForeign(options, start, env);
  for (const auto& [name, value] : SlurmJobEnvironment(start, gpus)) env[name] = value;
  env["SLURM_JOB_UID"] = absl::StrCat(user.uid);
  env["SLURM_JOB_GID"] = absl::StrCat(user.gid);
  SetServer(options, start, directory, has_token, env);
  if (!spec.has_batch()) return spec;
  const std::string path = absl::StrCat(directory, "/", kBatchScript);
  RETURN_IF_ERROR(WritePrivate(path, spec.batch().script(), user, 0700));
  const std::vector<std::string> command = ScriptCommand(spec.batch().script(), path);
  spec.mutable_command()->Assign(command.begin(), command.end());
  spec.mutable_command()->MergeFrom(spec.batch().args());
  spec.mutable_nodes()->set_min(1);
  spec.mutable_nodes()->set_max(1);
  spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  spec.mutable_workers_per_node()->set_count(1);
  // The script may use all that its steps may use.
  spec.mutable_placement()->clear_bind();
  spec.mutable_batch()->clear_script();
  spec.mutable_batch()->clear_args();
  return spec;
}

void RenewUserToken(const std::string& directory, const std::string& secret, absl::Time now) {
  const std::optional<GivenFile> about =
      ReadGivenFile(absl::StrCat(directory, "/", kUserTokenOwner));
  if (!about.has_value() || about->owner.uid != geteuid()) return;
  const std::vector<std::string> words = absl::StrSplit(about->content, '\n');
  uint64_t server_id = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &server_id)) return;
  const std::string path = absl::StrCat(directory, "/", kUserToken);
  std::optional<GivenFile> given = ReadGivenFile(path);
  if (!given.has_value()) return;
  const std::optional<Bearer> bearer =
      VerifiedBearer(secret, absl::StripSuffix(given->content, "\n"));
  const bool is_theirs = bearer.has_value() && bearer->kind == Bearer::Kind::kUser &&
                         bearer->user == words[0] && bearer->server_id == server_id;
  if (is_theirs && bearer->ends > now + kUserTokenLifetime / 2) return;
  given->content =
      absl::StrCat(UserToken(secret, server_id, words[0], now + kUserTokenLifetime), "\n");
  ReplaceGivenFile(path, *given);
}

}  // namespace cadre::agent
