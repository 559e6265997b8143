// Creates and shares the id by which the ranks of an NCCL communicator find each other. NCCL is
// loaded at run time, so programs that link this start without it; creating the id needs no GPU.
#ifndef CADRE_NCCL_UNIQUE_ID_H_
#define CADRE_NCCL_UNIQUE_ID_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "cadre/result.h"
#include "cadre/worker.h"

namespace cadre::nccl {

// The size of ncclUniqueId.
constexpr size_t kNcclUniqueIdBytes = 128;

// Calls ncclGetUniqueId. The id refers to a listening socket of this process, so it must be created
// by the communicator's rank 0, which must live until all ranks are connected. Thread safe. The
// library is $CADRE_NCCL_LIBRARY, or else libnccl.so.2 on the loader's path, in $CUDA_HOME/lib64 or
// in /usr/local/cuda/lib64; it stays loaded.
//   UNIMPLEMENTED  this program was built on a machine without nccl.h
//   NOT_FOUND      no NCCL library; lists where it was searched for
//   UNAVAILABLE    NCCL failed, with its message
Result<std::string> MintNcclUniqueId();

// Called by all ranks: rank 0 creates and publishes the id, and all ranks return it. If rank 0
// fails, all ranks get its error at once.
Result<std::string> ShareNcclUniqueId(Worker& worker, std::string_view communicator,
                                      std::chrono::nanoseconds timeout);

}  // namespace cadre::nccl

#endif  // CADRE_NCCL_UNIQUE_ID_H_
