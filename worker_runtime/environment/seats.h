// The nodes that the ranks of one launch make out together. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_SEATS_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_SEATS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cadre/result.h"

namespace cadre::environment {

// What a rank knows of its place. The lists of fields are for frames (rpc/frames/messages.h).
struct Seat {
  // -1: its launcher has not said.
  int32_t local_rank = -1;
  int32_t local_world_size = -1;
  int32_t world_size = 0;
  // The same for ranks that can share memory (machine.h).
  std::string machine;
};
template <typename Io>
void Fields(Io& io, Seat& m) {
  io(m.local_rank, m.local_world_size, m.world_size, m.machine);
}

struct SeatPlace {
  int32_t local_rank = 0;
  int32_t local_world_size = 1;
  int32_t node_rank = 0;
  int32_t nodes = 1;
};
template <typename Io>
void Fields(Io& io, SeatPlace& m) {
  io(m.local_rank, m.local_world_size, m.node_rank, m.nodes);
}

// Of each rank, where the ranks of each node follow each other. A node begins where the local rank
// is 0; where nobody knows local ranks, with another machine. INVALID_ARGUMENT, naming ranks: they
// do not follow each other, or do not agree.
Result<std::vector<SeatPlace>> ArrangeSeats(const std::vector<Seat>& seats);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_SEATS_H_
