// One operation of a communicator as a program calls it. Only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_OPERATION_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_OPERATION_H_

#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/memory.h"

namespace cadre::pretend_gpu {

enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive };

struct Operation {
  Kind kind = Kind::kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  // As the call has it: of one rank's part.
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  // The root, or the other rank of a transfer.
  int peer = 0;
  // What this rank multiplies its elements with, as an element; empty: nothing.
  std::string scalar;
};

bool IsTransfer(const Operation& operation);
bool IsReduction(const Operation& operation);
// "ncclAllReduce (sum) of 8 float32".
std::string NameOf(const Operation& operation);
// The memory that `rank` of `size` uses.
std::vector<Use> UsesOf(const Operation& operation, int rank, int size);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_OPERATION_H_
