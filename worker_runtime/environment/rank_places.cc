// Assigns ranks to nodes by what they know of their machines.
#include "worker_runtime/environment/rank_places.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/status.h"

namespace cadre::environment {
namespace {

Status Spread(size_t rank, size_t first) {
  return InvalidArgumentError(absl::StrCat(
      "the ranks are spread so that rank ", rank, " does not follow rank ", first,
      " of its node; the ranks of one node must follow each other (mpirun: --map-by slot; srun: "
      "--distribution=block), or start the program with Cadre: ... cadre run -- PROGRAM"));
}

Status CheckAgreement(const std::vector<RankLocation>& locations) {
  const bool knows = locations[0].local_rank >= 0;
  for (size_t rank = 0; rank < locations.size(); ++rank) {
    if (locations[rank].world_size != static_cast<int32_t>(locations.size())) {
      return InvalidArgumentError(absl::StrCat("rank 0 was told that there are ", locations.size(),
                                               " ranks, rank ", rank, " that there are ",
                                               locations[rank].world_size, " (WORLD_SIZE)"));
    }
    if ((locations[rank].local_rank >= 0) != knows) {
      return InvalidArgumentError(
          absl::StrCat("rank ", knows ? 0 : rank, " was told its local rank, but not rank ",
                       knows ? rank : 0, ": set LOCAL_RANK for all or none"));
    }
  }
  return OkStatus();
}

// Checks one node's ranks, `first` to `end` - 1.
Status CheckNode(const std::vector<RankLocation>& locations, size_t first, size_t end) {
  for (size_t rank = first; rank < end; ++rank) {
    const RankLocation& location = locations[rank];
    if (location.local_rank >= 0 && location.local_rank != static_cast<int32_t>(rank - first)) {
      return Spread(rank, first);
    }
    const auto size = static_cast<int32_t>(end - first);
    if (location.local_world_size < 0 || location.local_world_size == size) continue;
    if (location.local_world_size > size && end < locations.size()) return Spread(end, first);
    return InvalidArgumentError(absl::StrCat("rank ", rank, " was told that its node has ",
                                             location.local_world_size, " ranks, but it has ", size,
                                             ", those from ", first,
                                             " on: ranks of one node must follow each other "
                                             "(mpirun: --map-by slot), or put Cadre between: ... "
                                             "cadre run -- PROGRAM"));
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<RankPlace>> PlaceRanks(const std::vector<RankLocation>& locations) {
  if (locations.empty()) return InvalidArgumentError("a world without ranks");
  RETURN_IF_ERROR(CheckAgreement(locations));
  std::vector<RankPlace> places(locations.size());
  std::set<std::string> machines;
  int32_t nodes = 0;
  for (size_t first = 0, end = 0; first < locations.size(); first = end, ++nodes) {
    const bool knows = locations[first].local_rank >= 0;
    for (end = first + 1; end < locations.size(); ++end) {
      if (knows ? locations[end].local_rank == 0
                : locations[end].machine != locations[first].machine)
        break;
    }
    if (!knows && !machines.insert(locations[first].machine).second) {
      size_t before = 0;
      while (locations[before].machine != locations[first].machine) ++before;
      return Spread(first, before);
    }
    RETURN_IF_ERROR(CheckNode(locations, first, end));
    for (size_t rank = first; rank < end; ++rank) {
      places[rank].local_rank = static_cast<int32_t>(rank - first);
      places[rank].local_world_size = static_cast<int32_t>(end - first);
      places[rank].node_rank = nodes;
    }
  }
  for (RankPlace& place : places) place.nodes = nodes;
  return places;
}

namespace {

std::string Namespace(const char* path) {
  char text[64] = "";
  const ssize_t size = readlink(path, text, sizeof(text));
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
}

}  // namespace

std::string ThisMachine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Clones of one virtual machine have the same boot id, so the host name is included.
  utsname names = {};
  uname(&names);
  return absl::StrCat(names.nodename, " ", boot, " ", Namespace("/proc/self/ns/pid"), " ",
                      Namespace("/proc/self/ns/net"));
}

}  // namespace cadre::environment
