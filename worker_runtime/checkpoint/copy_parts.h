// Copies the parts of a state into one block of memory, with several threads if there are cores for
// them: a single thread does not reach a large machine's memory bandwidth. Stateless; any thread.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_COPY_PARTS_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_COPY_PARTS_H_

#include <cstddef>

#include "cadre/memory_checkpoint.h"
#include "cadre/span.h"

namespace cadre::checkpoint {

// Returns the number of threads for so many bytes, at least 1. It leaves half of the cores of each
// of the node's `workers_here` workers to the training.
int CopiersFor(size_t bytes, int workers_here);

// Copies the parts to `to`, one after the other. It uses fewer threads if no more can be started.
void CopyParts(Span<const StatePart> parts, char* to, int copiers);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_COPY_PARTS_H_
