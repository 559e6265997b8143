// Works out the nodes of one launch from what its ranks know. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_RANK_PLACES_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_RANK_PLACES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cadre/result.h"

namespace cadre::environment {

// Identifies the machine of this process, as far as shared memory is concerned. Equal for processes
// that see each other's process ids and loopback, and different for all others: two containers on
// one machine count as two. One line of printable characters.
std::string ThisMachine();

// What a rank knows of its place. Fields() lists the fields for frames (rpc/frames/codec.h).
struct RankLocation {
  // -1 if its launcher does not set it.
  int32_t local_rank = -1;
  int32_t local_world_size = -1;
  int32_t world_size = 0;
  // ThisMachine(): equal for ranks that can share memory.
  std::string machine;
};
template <typename Io>
void Fields(Io& io, RankLocation& m) {
  io(m.local_rank, m.local_world_size, m.world_size, m.machine);
}

struct RankPlace {
  int32_t local_rank = 0;
  int32_t local_world_size = 1;
  int32_t node_rank = 0;
  int32_t nodes = 1;
};
template <typename Io>
void Fields(Io& io, RankPlace& m) {
  io(m.local_rank, m.local_world_size, m.node_rank, m.nodes);
}

// Returns each rank's place; the ranks of each node must be contiguous. A node begins where the
// local rank is 0 or, if no rank knows its local rank, where the machine changes. INVALID_ARGUMENT,
// naming ranks: a node's ranks are not contiguous, or the ranks contradict each other.
Result<std::vector<RankPlace>> PlaceRanks(const std::vector<RankLocation>& locations);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_RANK_PLACES_H_
