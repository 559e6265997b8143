#include "worker_runtime/environment/secret.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "base/user_directory.h"
#include "worker_runtime/absl_types.h"

namespace cadre::environment {
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
  if (!directory.ok()) return Read(std::move(directory), "no secret of yours here: ", false);
  return Read(SharedToken(absl::StrCat(*directory, "/worker-secret")),
              "no secret of yours here: ", false);
}

}  // namespace cadre::environment
