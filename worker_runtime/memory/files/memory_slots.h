// Some checkpoints of one owner, each in a file of a folder in memory. A state is whole once it is
// committed; what a killed process was writing is not. One thread of one process writes at a time;
// others may read what was committed.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_FILES_MEMORY_SLOTS_H_
#define CADRE_WORKER_RUNTIME_MEMORY_FILES_MEMORY_SLOTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/memory/files/mapped_file.h"
#include "worker_runtime/memory/files/slot_file.h"

namespace cadre::memory {

struct SavedStep : SlotLabel {
  int slot = 0;
};

class MemorySlots {
 public:
  // Files are `directory`/`name`.0 and so on, `count` of them; made when they are written first.
  MemorySlots(std::string directory, std::string name, int count);

  // What is whole, as it lies there now. A file that is none of ours counts as empty.
  std::vector<SavedStep> Whole() const;
  std::optional<SavedStep> Find(int64_t step, uint64_t generation) const;

  // Room for `bytes` where the oldest is, which is no longer whole then. RESOURCE_EXHAUSTED: the
  // memory is full; nothing else is changed.
  absl::StatusOr<char*> Begin(size_t bytes);
  // What was written since Begin() is `step`, and those from it on are gone. FAILED_PRECONDITION:
  // nothing was begun.
  absl::Status Commit(int64_t step, uint64_t generation, int world_size);

  // Forgets what is above `step`.
  absl::Status DropAbove(int64_t step);

  // Begin() leaves that slot alone; on any thread. nullopt: none.
  void Reserve(std::optional<int> slot) { reserved_ = slot.value_or(kNone); }

  std::string Path(int slot) const;

 private:
  static constexpr int kNone = -1;

  const std::string directory_;
  const std::string name_;
  const int count_;
  std::atomic<int> reserved_{kNone};
  int begun_ = kNone;
  size_t begun_bytes_ = 0;
  // Of each slot, kept so that its pages are mapped once.
  std::vector<std::optional<MappedFile>> written_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_FILES_MEMORY_SLOTS_H_
