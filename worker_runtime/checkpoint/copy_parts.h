// Copies the parts of a state into one memory, by several threads where there are cores for that:
// one alone does not reach what the memory of a large machine can do. Stateless; any thread.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_COPY_PARTS_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_COPY_PARTS_H_

#include <cstddef>

#include "cadre/memory_checkpoint.h"
#include "cadre/span.h"

namespace cadre::checkpoint {

// Threads for so many bytes, at least 1. Half of the cores of each of the `workers_here` of this
// node are left to its training.
int CopiersFor(size_t bytes, int workers_here);

// The parts come to lie one behind the other at `to`. With fewer threads where there is no room for
// more.
void CopyParts(Span<const StatePart> parts, char* to, int copiers);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_COPY_PARTS_H_
