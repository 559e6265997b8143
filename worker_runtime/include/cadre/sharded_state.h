// One rank's part of a training state whose tensors are sharded over the ranks, and the saved form
// of it. Framework-free; cadre/torch/sharded_checkpoint.h creates and loads it.
#ifndef CADRE_SHARDED_STATE_H_
#define CADRE_SHARDED_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/memory_checkpoint.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/status.h"

namespace cadre {

namespace checkpoint {
class SavedParts;
}

// A whole tensor, of which ranks keep ranges.
struct ShardedTensor {
  std::string name;
  // The framework's name for the element type: "Float". One word.
  std::string type;
  // Bytes of one element, 1 to 64.
  size_t element_bytes = 0;
  std::vector<int64_t> shape;
};

// `count` elements starting at `begin`, in row-major order.
struct ShardedRange {
  ShardedTensor tensor;
  int64_t begin = 0;
  int64_t count = 0;
  // Owned by the caller, who must not change it until the checkpoint that it was passed to is done
  // with it.
  const void* data = nullptr;
  // Whether another rank has the same range and writes it to its file in place of this one.
  bool elsewhere = false;
};

// The state of one rank. Used by one thread.
class ShardedState {
 public:
  ShardedState(int rank, int ranks);
  ShardedState(ShardedState&&) noexcept;
  ShardedState& operator=(ShardedState&&) noexcept;
  ~ShardedState();

  // Ranges of 0 elements are ignored. `owner` lives as long as this, to keep the data alive.
  void Add(ShardedRange range, std::shared_ptr<const void> owner = nullptr);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::vector<ShardedRange>& ranges() const { return ranges_; }
  // The total size of the data.
  size_t bytes() const;

  // The whole state, for MemoryCheckpoint::Save(); this object must live unchanged until that
  // checkpoint's Wait() returns. SavedShards::FromMemory() reads it. INVALID_ARGUMENT, naming the
  // tensor: ranges contradict each other.
  Result<Span<const StatePart>> Parts(int64_t step);

 private:
  int rank_;
  int ranks_;
  std::vector<ShardedRange> ranges_;
  std::vector<std::shared_ptr<const void>> owners_;
  // The result of the last Parts().
  std::unique_ptr<const std::string> head_;
  std::vector<StatePart> parts_;
};

// A saved state, read piece by piece, by any number of ranks. Used by one thread.
class SavedShards {
 public:
  // Reads the bytes of one rank's ShardedState::Parts(), so it has that rank's ranges only. The
  // bytes must outlive this. DATA_LOSS: they are something else.
  static Result<SavedShards> FromMemory(Span<const char> bytes);
  // Reads a folder of a sharded checkpoint, which has the ranges of all ranks. Reads only its
  // index.
  //   INVALID_ARGUMENT     the folder is not a sharded checkpoint
  //   FAILED_PRECONDITION  it has a newer format
  //   DATA_LOSS            it is damaged
  static Result<SavedShards> FromFolder(const std::string& folder);
  SavedShards(SavedShards&&) noexcept;
  SavedShards& operator=(SavedShards&&) noexcept;
  ~SavedShards();

  int64_t step() const;
  // The number of ranks that saved it.
  int ranks() const;
  bool in_memory() const;

  // Null if there is no such tensor.
  const ShardedTensor* Find(std::string_view name) const;
  std::vector<std::string> names() const;

  // Copies elements of a tensor to `to`; blocks while files are read. Each range that has some of
  // them is read whole and verified against its checksum.
  //   DATA_LOSS         naming the file: a part is missing, too short, or damaged
  //   INVALID_ARGUMENT  there is no such tensor, or an element is not in this rank's memory
  Status Read(std::string_view name, int64_t begin, int64_t count, void* to) const;
  // Reads and verifies everything that `rank` saved, without keeping it; errors as Read().
  Status Check(int rank) const;

 private:
  explicit SavedShards(std::unique_ptr<checkpoint::SavedParts> parts);

  std::unique_ptr<checkpoint::SavedParts> parts_;
};

}  // namespace cadre

#endif  // CADRE_SHARDED_STATE_H_
