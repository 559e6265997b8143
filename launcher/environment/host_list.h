// Lists of hosts: in Slurm's compact form, and in host files as for mpirun. Pure.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_HOST_LIST_H_
#define CADRE_LAUNCHER_ENVIRONMENT_HOST_LIST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {

inline constexpr size_t kMaxHosts = 65536;
// Expands "n[01-03,07],g-a[1-2]" to names; several brackets in a name are a product, and zeros in
// front are kept. INVALID_ARGUMENT for a list that is malformed or has more than kMaxHosts names.
absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view list);

// Expands Slurm's counts per node: "2(x3),1" to {2, 2, 2, 1}.
absl::StatusOr<std::vector<uint32_t>> ExpandTasksPerNode(absl::string_view text);

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

#endif  // CADRE_LAUNCHER_ENVIRONMENT_HOST_LIST_H_
