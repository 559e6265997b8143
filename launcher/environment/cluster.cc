// A launcher that an agent started for its node's part of a submitted job.
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/environment/identity.h"

namespace cadre::launcher {

absl::StatusOr<std::optional<Identity>> ReadCluster(const EnvironmentMap& environment) {
  const std::string part = TextIn(environment, "CADRE_CLUSTER_PART");
  if (part.empty()) return std::optional<Identity>();
  Identity identity;
  identity.source = "cadre agent";
  if (!absl::SimpleAtoi(part, &identity.part) || identity.part == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable CADRE_CLUSTER_PART: expected a number, got '", part,
                     "'; 'cadre agent' alone sets it"));
  }
  identity.node_name = TextIn(environment, "CADRE_CLUSTER_NODE");
  identity.node_names = absl::StrSplit(TextIn(environment, "CADRE_CLUSTER_NODES"), ',');
  identity.nodes = static_cast<uint32_t>(identity.node_names.size());
  // Whatever becomes of the server meanwhile.
  identity.serves = false;
  return std::optional<Identity>(identity);
}

}  // namespace cadre::launcher
