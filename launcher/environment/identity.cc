#include "launcher/environment/identity.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::launcher {

absl::StatusOr<std::optional<uint32_t>> NumberIn(const EnvironmentMap& environment,
                                                 const std::string& name) {
  const std::string text = TextIn(environment, name);
  if (text.empty()) return std::optional<uint32_t>();
  uint32_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", name, ": expected a number, got '", text, "'"));
  }
  return std::optional<uint32_t>(value);
}

std::string TextIn(const EnvironmentMap& environment, const std::string& name) {
  const auto it = environment.find(name);
  return it == environment.end() ? "" : it->second;
}

int PortFor(absl::string_view seed) {
  // FNV-1a: the same on every node, whatever library computes it.
  uint32_t hash = 2166136261u;
  for (const char c : seed) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 9400);
}

absl::StatusOr<std::optional<Identity>> DetectIdentity(const EnvironmentMap& environment) {
  for (const auto read :
       {ReadCluster, ReadTorchrun, ReadOpenMpi, ReadSlurm, ReadKubernetes, ReadPmi}) {
    ASSIGN_OR_RETURN(std::optional<Identity> identity, read(environment));
    if (identity.has_value()) return identity;
  }
  return std::optional<Identity>();
}

}  // namespace cadre::launcher
