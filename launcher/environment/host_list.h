// Slurm's short ways to write many: lists of hosts, and counts per node. Pure.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_HOST_LIST_H_
#define CADRE_LAUNCHER_ENVIRONMENT_HOST_LIST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {

// "n[01-03,07],g-a[1-2]" to names; several brackets in a name are a product, and zeros in front are
// kept. INVALID_ARGUMENT for a list that is malformed or has more than kMaxHosts names.
inline constexpr size_t kMaxHosts = 65536;
absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view list);

// "2(x3),1" to {2, 2, 2, 1}.
absl::StatusOr<std::vector<uint32_t>> ExpandTasksPerNode(absl::string_view text);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_HOST_LIST_H_
