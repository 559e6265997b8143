// Reads the variables of Cadre's agent and of the user: a worker's place, and the secret.
#include "worker_runtime/environment/worker_environment.h"

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "base/user_directory.h"
#include "worker_runtime/absl_types.h"

namespace cadre::environment {
namespace {

template <typename Number>
Result<Number> ReadNumber(const GetVariable& get, const char* name) {
  const char* text = get(name);
  if (text == nullptr) {
    return FailedPreconditionError(absl::StrCat(
        name, " is not set although CADRE_AGENT is: pass Cadre's variables on to the program"));
  }
  Number number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 0) {
    return InvalidArgumentError(
        absl::StrCat(name, " is \"", text, "\", but must be a number that is not negative"));
  }
  return number;
}

Result<std::string> ReadToken(const std::string& path) {
  absl::StatusOr<std::string> token = ReadTokenFile(path);
  if (!token.ok()) {
    const Status status = token.status();
    return Status(status.code(), absl::StrCat("CADRE_TOKEN_FILE: ", status.message()));
  }
  return *std::move(token);
}

}  // namespace

bool StartedByCadre(const GetVariable& get) {
  const char* const agent = get("CADRE_AGENT");
  return agent != nullptr && *agent != '\0';
}

Result<WorkerEnvironment> ReadWorkerEnvironment(const GetVariable& get) {
  WorkerEnvironment environment;
  if (!StartedByCadre(get)) {
    return FailedPreconditionError(
        "CADRE_AGENT is not set: this process was not started by Cadre; start it with \"cadre run "
        "-- PROGRAM\"");
  }
  environment.agent_socket = get("CADRE_AGENT");
  ASSIGN_OR_RETURN(environment.generation, ReadNumber<uint64_t>(get, "CADRE_GENERATION"));
  ASSIGN_OR_RETURN(environment.rank, ReadNumber<int>(get, "RANK"));
  const char* token_file = get("CADRE_TOKEN_FILE");
  if (token_file != nullptr && *token_file != '\0') {
    ASSIGN_OR_RETURN(environment.token, ReadToken(token_file));
  }
  if (get("CADRE_PROGRESS_FD") != nullptr) {
    ASSIGN_OR_RETURN(environment.progress_fd, ReadNumber<int>(get, "CADRE_PROGRESS_FD"));
  }
  const char* checkpoint_file = get("CADRE_CHECKPOINT_FILE");
  if (checkpoint_file != nullptr) environment.checkpoint_file = checkpoint_file;
  return environment;
}

namespace {

Result<Secret> Read(absl::StatusOr<std::string> token, const char* what, bool from_file) {
  if (token.ok()) return Secret{*std::move(token), from_file};
  const Status status = token.status();
  return Status(status.code(), absl::StrCat(what, status.message()));
}

}  // namespace

Result<Secret> ReadSecret(const GetVariable& get) {
  const absl::string_view file = TextOf(get, "CADRE_SECRET_FILE");
  if (!file.empty()) return Read(ReadTokenFile(std::string(file)), "CADRE_SECRET_FILE: ", true);
  absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok())
    return Read(std::move(directory), "this user's own secret cannot be read or made: ", false);
  return Read(SharedToken(absl::StrCat(*directory, "/worker-secret")),
              "this user's own secret cannot be read or made: ", false);
}

absl::string_view TextOf(const GetVariable& get, const char* name) {
  const char* const text = get(name);
  return text == nullptr ? "" : text;
}

Result<std::optional<int>> NumberOf(const GetVariable& get, const char* name) {
  const absl::string_view text = TextOf(get, name);
  if (text.empty()) return std::optional<int>();
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return std::optional<int>(number);
  return InvalidArgumentError(
      absl::StrCat(name, " is \"", text, "\", but must be a number from 0 to 2147483647"));
}

}  // namespace cadre::environment
