// Checkpoints of a training job whose state is sharded over the ranks: each rank writes its own
// part in the background, and any number of ranks can load them. After PyTorch's
// torch.distributed.checkpoint.
//
//   CADRE_ASSIGN_OR_RETURN(auto checkpoint, ShardedCheckpoint::Open(*worker, "checkpoints", {}));
//   CADRE_ASSIGN_OR_RETURN(auto latest, checkpoint->Latest());   // on all ranks, before training
//   if (latest) CADRE_RETURN_IF_ERROR(nn::LoadShards(*model, adam, latest->shards));
//   ...
//   CADRE_ASSIGN_OR_RETURN(auto state, nn::ShardsOf(*model, adam));
//   CADRE_RETURN_IF_ERROR(checkpoint->Save(step, state));        // on all ranks; only copies
//   ...
//   CADRE_RETURN_IF_ERROR(checkpoint->Wait());                   // before the program ends
//
//   DIR/step_418_g3/part_0 ...        each rank's part
//   DIR/step_418_g3/{data,manifest}   the index of the parts, and its checksum
//   DIR/LATEST, DIR/.tmp_g3_...       as in any checkpoint directory (checkpoint_directory.h)
//
// The index is written when all parts are on disk, and made visible by a rename: after a crash at
// any moment the newest complete checkpoint is found.
#ifndef CADRE_SHARDED_CHECKPOINT_H_
#define CADRE_SHARDED_CHECKPOINT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cadre/memory_checkpoint.h"
#include "cadre/result.h"
#include "cadre/sharded_state.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre {

struct ShardedCheckpointOptions {
  // The number of newest checkpoints that are kept, at least 2; older ones are removed.
  int keep = 2;
  // Limits the wait for all ranks' parts to be on disk, and for all ranks to arrive where they wait
  // for each other.
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);
};

struct LatestShards {
  SavedShards shards;
  // One human-readable line if newer checkpoints were skipped because they are damaged.
  std::string warning;
};

// Used by one thread at a time.
class ShardedCheckpoint {
 public:
  // Called by all ranks, in the same order if there are several; uses only the worker's store. The
  // directory must be on a file system that all nodes share, and is created if it is missing.
  // `worker` must outlive this object, which belongs to the worker's generation.
  static Result<std::unique_ptr<ShardedCheckpoint>> Open(Worker& worker,
                                                         const std::string& directory,
                                                         const ShardedCheckpointOptions& options);
  // Waits like Wait().
  virtual ~ShardedCheckpoint() = default;

  // Called by all ranks with the same step. Copies this rank's state, which may change from then
  // on, and returns; the copy, of the state's size in host memory, is reused by the next call.
  // Files are written on a background thread. Waits for a write that is still running and returns
  // that write's error, but starts this one all the same.
  virtual Status Save(int64_t step, const ShardedState& state) = 0;

  // Waits until the state of Save() is on disk on all ranks, or has failed on one: then earlier
  // checkpoints are unchanged and all ranks get the first error. OK if there is nothing to wait for
  // or the error has been returned already.
  //   ABORTED            the generation is over; nothing was changed
  //   DEADLINE_EXCEEDED  a rank did not arrive in time, or did not write in time
  //   INVALID_ARGUMENT   naming the tensor: the ranks' ranges do not make whole tensors
  //   and errors of the file system, naming rank and file
  virtual Status Wait() = 0;

  // Called by all ranks, which get the same step; nullopt: there is none. Reads from `memory` if
  // that is given and has a state of all ranks, each its own, possibly from a partner's memory; it
  // must then be loaded before the next Save() of `memory`. Otherwise reads the newest intact
  // checkpoint of the directory: the ranks share the reading of its parts, and a damaged one is
  // skipped in favor of the one before. Waits for a write that is still running.
  //   DATA_LOSS            all checkpoints are damaged
  //   INVALID_ARGUMENT     the newest is one that rank 0 saved alone (SaveCheckpoint())
  //   FAILED_PRECONDITION  the newest has a newer format
  //   NOT_FOUND            this rank's node does not see the checkpoint that rank 0's node sees
  virtual Result<std::optional<LatestShards>> Latest(MemoryCheckpoint* memory = nullptr) = 0;
};

}  // namespace cadre

#endif  // CADRE_SHARDED_CHECKPOINT_H_
