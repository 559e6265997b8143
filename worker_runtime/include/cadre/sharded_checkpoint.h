// Checkpoints of a training whose state is spread over the ranks: each rank writes its own part,
// behind the training, and any number of ranks loads them. After PyTorch's
// torch.distributed.checkpoint.
//
//   CADRE_ASSIGN_OR_RETURN(auto checkpoint, ShardedCheckpoint::Open(*worker, "checkpoints", {}));
//   CADRE_ASSIGN_OR_RETURN(auto latest, checkpoint->Latest());   // on all ranks, before training
//   if (latest) CADRE_RETURN_IF_ERROR(nn::LoadShards(*model, adam, latest->shards));
//   ...
//   CADRE_ASSIGN_OR_RETURN(auto state, nn::ShardsOf(*model, adam));
//   CADRE_RETURN_IF_ERROR(checkpoint->Save(step, state));        // on all ranks; copies, no more
//   ...
//   CADRE_RETURN_IF_ERROR(checkpoint->Wait());                   // before the program ends
//
//   DIR/step_418_g3/part_0 ...        what each rank keeps
//   DIR/step_418_g3/{data,manifest}   what is where, and its checksum
//   DIR/LATEST, DIR/.tmp_g3_...       as in any checkpoint directory (checkpoint_directory.h)
//
// What is where is written when all parts are on disk, and made visible by a rename: after a crash
// at any moment the newest whole checkpoint is found.
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
  // The newest checkpoints that are kept, at least 2; older ones are removed.
  int keep = 2;
  // For all ranks' parts to be on disk, and for all ranks to come where they wait for each other.
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);
};

struct LatestShards {
  SavedShards shards;
  // One line for people when newer checkpoints were passed over because they are damaged.
  std::string warning;
};

// Used by one thread at a time.
class ShardedCheckpoint {
 public:
  // On all ranks, in the same order where there are several; asks the worker's store alone. The
  // directory is on a file system that all nodes share, and made if need be. `worker` must outlive
  // this, which belongs to its generation.
  static Result<std::unique_ptr<ShardedCheckpoint>> Open(Worker& worker,
                                                         const std::string& directory,
                                                         const ShardedCheckpointOptions& options);
  // As Wait().
  virtual ~ShardedCheckpoint() = default;

  // On all ranks with the same step. Copies this rank's state, which may change from then on, and
  // returns; the copy, of the state's size in the host's memory, stays for the next one. Files are
  // written on a thread. Waits for a write that still runs, and returns what that failed with,
  // having begun this one all the same.
  virtual Status Save(int64_t step, const ShardedState& state) = 0;

  // Until what Save() began is on disk on all ranks, or has failed on one: then what was there
  // before is as it was, and all ranks get the first error. OK where there is nothing to wait for,
  // and once an error was told.
  //   ABORTED            the generation has moved on; nothing was changed
  //   DEADLINE_EXCEEDED  a rank did not come in time, or did not write in time
  //   INVALID_ARGUMENT   naming the tensor: the ranks' ranges do not make whole tensors
  //   and what the file system says, naming rank and file
  virtual Status Wait() = 0;

  // On all ranks, which get the same step; nullopt: there is none. Of `memory` where one is given
  // and has a state of all ranks, each its own, be it from a partner's memory; that is to be loaded
  // before the next Save() of `memory`. Else the newest whole checkpoint of the directory: its
  // parts are read by all ranks together, a share each, and a damaged one gives way to the one
  // before. Waits for a write that still runs.
  //   DATA_LOSS            all are damaged
  //   INVALID_ARGUMENT     the newest is one that rank 0 saved alone (SaveCheckpoint())
  //   FAILED_PRECONDITION  the newest is of a newer format
  //   NOT_FOUND            this rank's node does not see what rank 0's does
  virtual Result<std::optional<LatestShards>> Latest(MemoryCheckpoint* memory = nullptr) = 0;
};

}  // namespace cadre

#endif  // CADRE_SHARDED_CHECKPOINT_H_
