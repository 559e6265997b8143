// What a stream does for a communicator's operations. Only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COLLECTIVE_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COLLECTIVE_H_

#ifdef CADRE_HAVE_NCCL_HEADERS

#include <string>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/board.h"
#include "worker_runtime/testing/pretend_gpu/operation.h"

namespace cadre::pretend_gpu {

struct CollectiveResult {
  Failure failure;
  // In what the ranks' calls differ; all ranks that see it have the same text.
  std::string mistake;
  bool ok() const { return failure.ok() && mistake.empty(); }
};

// The ranks' calls are compared first; then data flows, if they agree.
CollectiveResult RunCollective(const Operation& operation, const Board& board, Meeting* meeting);

// Sends and receives of one group, which run beside each other; of those between the same two
// ranks in the same direction the first goes first.
CollectiveResult RunTransfers(const std::vector<Operation>& operations, const Board& board);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COLLECTIVE_H_
