// How the ranks of one node come to map each other's segments: through the store.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_MEETING_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_MEETING_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/shared_memory/segment_layout.h"

namespace cadre::shared_memory {

struct MappedSegments {
  Segments segments;        // by rank
  std::vector<pid_t> pids;  // of the processes whose they are
};

// Collective over the world: each rank makes a segment of `bytes` and maps all others'; every rank
// calls it as often with the same name. Waits for the others, `timeout` at most. As Worker's calls;
// what making or mapping memory comes to.
Result<MappedSegments> MapSegments(Worker& worker, const std::string& name, size_t bytes,
                                   std::chrono::nanoseconds timeout);

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_MEETING_H_
