// Checkpoints of one owner in a directory in memory (tmpfs): each is a file, a slot, whose header
// names the step and is written last. A state is complete once it is committed; one that a killed
// process was writing is not. One thread of one process writes at a time; others may read committed
// states.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_FILES_MEMORY_SLOTS_H_
#define CADRE_WORKER_RUNTIME_MEMORY_FILES_MEMORY_SLOTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre::memory {

// A file of a directory in memory (tmpfs), mapped as a whole. It is owned by one thread.
class MappedFile {
 public:
  // Opens the file, or creates it with mode 0600, and makes it at least `bytes` long. All its pages
  // are allocated, so no later write to them can fail. RESOURCE_EXHAUSTED: memory is short.
  static absl::StatusOr<MappedFile> Writable(const std::string& path, size_t bytes);
  // Maps the file in its current length. NOT_FOUND: the file is missing or empty.
  static absl::StatusOr<MappedFile> Readable(const std::string& path);

  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(char* data, size_t size) : data_(data), size_(size) {}

  char* data_ = nullptr;
  size_t size_ = 0;
};

// The state begins at a page boundary.
inline constexpr size_t kStateOffset = 4096;

struct SlotLabel {
  int64_t step = 0;
  // The generation that saved it. The same step saved by another generation is another state.
  uint64_t generation = 0;
  int world_size = 0;
  size_t bytes = 0;
  // The owner numbers its commits with this, so the oldest state is known.
  uint64_t sequence = 0;
};

// Returns nullopt if the file holds no complete state or has another format.
std::optional<SlotLabel> ReadLabel(const std::string& path);
absl::Status WriteLabel(const std::string& path, const SlotLabel& label);
// Marks the state as incomplete.
absl::Status EraseLabel(const std::string& path);

// Maps the file; the state begins at kStateOffset. DATA_LOSS: the file is shorter than that.
absl::StatusOr<MappedFile> MapState(const std::string& path, size_t bytes);

// The files that a node's directory in memory holds: "rank-R.N" are rank R's own states, "copy-R.N"
// are copies kept for rank R of another node, and "replicated.N" are states common to all ranks.

// The file name of replicated states. All ranks have the same ones, so two slots suffice.
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

// Returns the files that hold a complete state.
std::vector<RankFile> RankFiles(const std::string& directory);

// Invalidates the states that became obsolete when all ranks rolled back to `step` of `generation`:
// those of higher steps, and those of the same step from another generation.
absl::Status RollBack(const std::string& directory, int64_t step, uint64_t generation);

// Removes the files, complete or not, for which `stays` returns false: those of ranks that neither
// run on this node nor have their partner here.
void RemoveOthers(const std::string& directory,
                  const std::function<bool(int rank, bool is_copy)>& stays);

struct SavedStep : SlotLabel {
  int slot = 0;
};

class MemorySlots {
 public:
  // The files are `directory`/`name`.0 to `name`.(count - 1). Each is created when first written.
  MemorySlots(std::string directory, std::string name, int count);

  // Returns the complete states that the files hold now. A file of another format counts as empty.
  std::vector<SavedStep> Complete() const;
  std::optional<SavedStep> Find(int64_t step, uint64_t generation) const;

  // Returns room for `bytes` in the slot of the oldest state, which is then no longer complete.
  // RESOURCE_EXHAUSTED: the memory is full, and nothing has changed.
  absl::StatusOr<char*> Begin(size_t bytes);
  // Labels what was written since Begin() as `step` and drops older states of `step` and of higher
  // steps. FAILED_PRECONDITION: Begin() was not called.
  absl::Status Commit(int64_t step, uint64_t generation, int world_size);

  // Drops the states of steps higher than `step`.
  absl::Status DropAbove(int64_t step);

  // Makes Begin() skip that slot; nullopt: it skips none. Any thread may call this.
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
  // The mapped file of each slot. It is kept so that its pages are mapped only once.
  std::vector<std::optional<MappedFile>> written_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_FILES_MEMORY_SLOTS_H_
