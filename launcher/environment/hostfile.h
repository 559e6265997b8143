// Files that list hosts, as mpirun has them: a host per line, "node1 slots=4", "node1:4",
// "user@node2"; blank lines and what follows a '#' are passed over. Pure.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_HOSTFILE_H_
#define CADRE_LAUNCHER_ENVIRONMENT_HOSTFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {

inline constexpr size_t kMaxHostfileHosts = 4096;

struct HostfileHost {
  // As ssh takes it, with "user@" where the file says so.
  std::string destination;
  // Without the user.
  std::string name;
  // Workers to start there; 0: the file does not say.
  uint32_t slots = 0;
};

// A host that is named several times has the slots of all its lines; a line without slots= is one
// of them then. INVALID_ARGUMENT names `file` and the line.
absl::StatusOr<std::vector<HostfileHost>> ParseHostfile(absl::string_view text,
                                                        absl::string_view file);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_HOSTFILE_H_
