// Checkpoints of a data-parallel job: rank 0 saves, all ranks load the same one.
//
//   CheckpointDirectory directory("checkpoints");
//   auto newest = LoadNewest(*worker, directory, timeout);      // on all ranks, before training
//   if (newest.ok() && newest->checkpoint) { Read(newest->checkpoint->path); ... }
//   ...
//   SaveCheckpoint(*worker, directory, step, [&](const std::string& path) { ... }, timeout);
#ifndef CADRE_CHECKPOINT_H_
#define CADRE_CHECKPOINT_H_

#include <chrono>
#include <cstdint>

#include "cadre/checkpoint_directory.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre {

// Called by all ranks with the same step; `writer` runs on rank 0. Returns rank 0's status on all
// ranks once the checkpoint is on disk. ABORTED: the generation is over, and nothing was changed.
// INVALID_ARGUMENT on a rank whose step differs from rank 0's.
Status SaveCheckpoint(Worker& worker, const CheckpointDirectory& directory, int64_t step,
                      const CheckpointDirectory::Writer& writer, std::chrono::nanoseconds timeout);

// Whether nodes that joined later wait for the workers to save and to exit with
// kWorkerExitForNextGeneration (exit_codes.h), after which a larger generation begins. Called by
// all ranks, which get rank 0's answer; it takes about a millisecond.
Result<bool> CheckpointWanted(Worker& worker, std::chrono::nanoseconds timeout);

// Called by all ranks. Rank 0 chooses the newest undamaged checkpoint and all ranks get that one,
// even if a newer one has appeared since. It stays on disk until two more have been saved. All
// nodes must share the directory; a rank that cannot see the checkpoint fails with NOT_FOUND.
Result<NewestCheckpoint> LoadNewest(Worker& worker, const CheckpointDirectory& directory,
                                    std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_CHECKPOINT_H_
