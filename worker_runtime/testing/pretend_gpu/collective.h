// The operations of a pretend NCCL communicator, and how a stream carries them out. Compiled only
// where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COLLECTIVE_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COLLECTIVE_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/board.h"
#include "worker_runtime/testing/pretend_gpu/memory.h"

namespace cadre::pretend_gpu {

enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive };

// One operation on a communicator, with the arguments of the program's call.
struct Operation {
  Kind kind = Kind::kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  // The count that the call gave: elements of one rank's part.
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  // The root, or the other rank of a transfer.
  int peer = 0;
  // The element with which this rank multiplies its own; empty if there is no factor.
  std::string scalar;
};

bool IsTransfer(const Operation& operation);
bool IsReduction(const Operation& operation);
// Returns, for example, "ncclAllReduce (sum) of 8 float32".
std::string NameOf(const Operation& operation);
// Returns the memory that `rank` of `size` ranks uses.
std::vector<Use> UsesOf(const Operation& operation, int rank, int size);

struct CollectiveResult {
  Failure failure;
  // How the ranks' calls differ; all ranks that detect it have the same text.
  std::string mistake;
  bool ok() const { return failure.ok() && mistake.empty(); }
};

// Compares the ranks' calls first and transfers data only if they agree.
CollectiveResult RunCollective(const Operation& operation, const Board& board, Meeting* meeting);

// Runs the sends and receives of one group concurrently; those between the same two ranks in the
// same direction run in order.
CollectiveResult RunTransfers(const std::vector<Operation>& operations, const Board& board);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_COLLECTIVE_H_
