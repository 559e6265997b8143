// Mints and shares the id by which the ranks of an NCCL communicator find each other. NCCL is
// loaded at run time, so programs that link this start without it; no GPU is needed for the id.
#ifndef CADRE_WORKER_RUNTIME_NCCL_UNIQUE_ID_H_
#define CADRE_WORKER_RUNTIME_NCCL_UNIQUE_ID_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker_runtime/worker.h"

namespace cadre::nccl {

// The size of ncclUniqueId.
constexpr size_t kNcclUniqueIdBytes = 128;

// Calls ncclGetUniqueId. The id holds a listening socket of this process: it must be minted by the
// communicator's rank 0, which lives until all ranks are connected. Thread safe. The library is
// $CADRE_NCCL_LIBRARY, else libnccl.so.2 on the loader's path, in $CUDA_HOME/lib64 or in
// /usr/local/cuda/lib64; it stays loaded.
//   UNIMPLEMENTED  this program was built on a machine without nccl.h
//   NOT_FOUND      no library; says where it was looked for
//   UNAVAILABLE    NCCL refused; its own words
absl::StatusOr<std::string> MintNcclUniqueId();

// Called by all ranks: rank 0 mints and publishes, all get the same id. When rank 0 cannot, all get
// its error at once.
absl::StatusOr<std::string> ShareNcclUniqueId(Worker& worker, absl::string_view communicator,
                                              absl::Duration timeout);

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_UNIQUE_ID_H_
