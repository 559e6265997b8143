// Some checkpoints of one owner, each in a file of a folder in memory. A state is whole once it is
// committed; what a killed process was writing is not. One thread of one process writes at a time;
// others may read what was committed.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_MEMORY_SLOTS_H_
#define CADRE_WORKER_RUNTIME_MEMORY_MEMORY_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/memory/mapped_file.h"

namespace cadre::memory {

struct SavedStep {
  int64_t step = 0;
  size_t bytes = 0;
  int world_size = 0;
  // Counts what this owner committed.
  uint64_t sequence = 0;
  int slot = 0;
};

class MemorySlots {
 public:
  // Files are `directory`/`name`.0 and so on, `count` of them; made when they are written first.
  MemorySlots(std::string directory, std::string name, int count);

  // What is whole, as it lies there now. A file that is none of ours counts as empty.
  std::vector<SavedStep> Whole() const;

  // Room for `bytes` where the oldest is, which is no longer whole then. RESOURCE_EXHAUSTED: the
  // memory is full; nothing else is changed.
  absl::StatusOr<char*> Begin(size_t bytes);
  // What was written since Begin() is `step`, and those from it on are gone. FAILED_PRECONDITION:
  // nothing was begun.
  absl::Status Commit(int64_t step, int world_size);

  // Forgets what is above `step`.
  absl::Status DropAbove(int64_t step);

  // What `saved` of Whole() holds; valid until that slot is begun again, or Read() is called again.
  absl::StatusOr<const char*> Read(const SavedStep& saved);

 private:
  std::string Path(int slot) const;
  absl::Status Forget(int slot) const;

  const std::string directory_;
  const std::string name_;
  const int count_;
  int begun_ = -1;
  size_t begun_bytes_ = 0;
  // Of each slot, kept so that its pages are mapped once.
  std::vector<std::optional<MappedFile>> written_;
  std::optional<MappedFile> read_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_MEMORY_SLOTS_H_
