// A pod of an indexed Job: pods are called <job>-<index>, and the first one can be reached under
// that name once a headless service exists, which CADRE_SERVICE names.
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/environment/identity.h"

namespace cadre::launcher {

absl::StatusOr<std::optional<Identity>> ReadKubernetes(const EnvironmentMap& environment) {
  ASSIGN_OR_RETURN(const std::optional<uint32_t> index,
                   NumberIn(environment, "JOB_COMPLETION_INDEX"));
  if (!index.has_value()) return std::optional<Identity>();
  Identity identity;
  identity.source = "Kubernetes";
  identity.node_rank = static_cast<int>(*index);
  identity.serves = *index == 0;
  identity.unsaid = absl::StrCat("JOB_COMPLETION_INDEX=", *index, " says that this is pod ", *index,
                                 " of an indexed Job, and nothing says of how many");
  const std::string host = TextIn(environment, "HOSTNAME");
  const std::string suffix = absl::StrCat("-", *index);
  const std::string service = TextIn(environment, "CADRE_SERVICE");
  if (absl::EndsWith(host, suffix) && !service.empty()) {
    identity.node_name = host;
    identity.job_name = host.substr(0, host.size() - suffix.size());
    identity.endpoint_comes_later = true;
    identity.endpoint_host = absl::StrCat(identity.job_name, "-0.", service);
  }
  return std::optional<Identity>(std::move(identity));
}

}  // namespace cadre::launcher
