// Host files as for mpirun. Pure.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_HOSTFILE_H_
#define CADRE_LAUNCHER_ENVIRONMENT_HOSTFILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {

inline constexpr size_t kMaxHostfileHosts = 4096;

struct HostfileHost {
  // The ssh destination, with "user@" if the file has it.
  std::string destination;
  // The host name without the user.
  std::string name;
  // The number of workers to start there; 0: the file does not specify it.
  uint32_t slots = 0;
};

// Parses a host file: one host per line, "node1 slots=4", "node1:4", "user@node2"; blank lines and
// text after '#' are ignored. A host that is listed several times gets the slots of all its lines;
// then a line without slots= counts as one. INVALID_ARGUMENT names `file` and the line.
absl::StatusOr<std::vector<HostfileHost>> ParseHostfile(absl::string_view text,
                                                        absl::string_view file);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_HOSTFILE_H_
