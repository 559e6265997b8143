#include "rendezvous/core/join_checks.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rpc/versions.h"

namespace cadre {
namespace {

// Whether this is an admitted node that reconnects. Only that node knows its incarnation.
bool Reconnects(const state::Job* job, const v1::NodeMessage& message) {
  if (job == nullptr) return false;
  const auto node = job->nodes.find(message.join().node());
  return node != job->nodes.end() && node->second.node().incarnation() == message.incarnation();
}

}  // namespace

absl::Status CheckCaller(const state::State& state, const v1::NodeMessage& message) {
  const v1::StreamCaller& caller = message.join().caller();
  const auto found = state.jobs.find(message.job());
  const state::Job* job = found == state.jobs.end() ? nullptr : &found->second;
  if (!caller.token_ended().empty() && !Reconnects(job, message)) {
    return absl::UnauthenticatedError(caller.token_ended());
  }
  // An empty user means an administrator, or a launcher that names its allocation.
  if (caller.user().empty() || job == nullptr || job->owner() == caller.user()) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "job ", job->name(), state::HasEnded(job->phase()) ? ", which has ended, is " : " is ",
      state::OwnerText(job->owner()), ", and this is the token of user ", caller.user(),
      "; take another name with --job-name"));
}

absl::Status CheckVersion(const v1::NodeMessage& message) {
  return rpc::CheckVersions("the server", rpc::ThisVersion(), "this node",
                            rpc::VersionIn(message.join()));
}

}  // namespace cadre
