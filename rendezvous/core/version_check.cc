#include "rendezvous/core/version_check.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rpc/versions.h"

namespace cadre {

absl::Status CheckVersion(const state::State& state, const v1::NodeMessage& message) {
  const v1::Version version = rpc::VersionIn(message.join());
  RETURN_IF_ERROR(rpc::CheckVersions("the server", rpc::ThisVersion(), "this node", version));
  const auto job = state.jobs.find(message.job());
  // Its workers would send in clear, and wait for the others', which do not.
  if (job == state.jobs.end() || !job->second.saved.spec().encrypt() ||
      rpc::IsSince(version, rpc::kEncryptSince)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("job ", message.job(), " encrypts what its workers send, and Cadre ",
                   rpc::VersionText(version), ", which runs on this node, cannot: upgrade it"));
}

}  // namespace cadre
