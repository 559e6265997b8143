// What a node's folder in memory holds of each rank: "rank-R.N" are a rank's own states, "copy-R.N"
// what a rank of another node gave this one to keep. "replicated.N" are those of all ranks.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_FILES_RANK_FILES_H_
#define CADRE_WORKER_RUNTIME_MEMORY_FILES_RANK_FILES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/memory/files/slot_file.h"

namespace cadre::memory {

// Of replicated states; any of two will do where all ranks have the same.
inline constexpr char kReplicatedName[] = "replicated";
inline constexpr int kReplicatedSlots = 2;

std::string OwnName(int rank);
std::string CopyName(int rank);

struct RankFile {
  int rank = 0;
  bool is_copy = false;
  std::string path;
  SlotLabel label;
};

// The whole states.
std::vector<RankFile> RankFiles(const std::string& directory);

// After all ranks went back to `step` of `generation`: what is newer, and the same step of another
// generation, is no longer whole.
absl::Status GoBack(const std::string& directory, int64_t step, uint64_t generation);

// Removes the files, whole or not, of ranks that neither are here nor have their partner here.
void RemoveOthers(const std::string& directory,
                  const std::function<bool(int rank, bool is_copy)>& stays);

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_FILES_RANK_FILES_H_
