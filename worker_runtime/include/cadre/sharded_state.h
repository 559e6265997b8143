// What one rank keeps of a training's state whose tensors are spread over the ranks, and what was
// saved of it. Framework-free; cadre/torch/sharded_checkpoint.h makes and loads it.
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

// A tensor as a whole, of which ranks keep ranges.
struct ShardedTensor {
  std::string name;
  // Of its elements, as the framework calls it: "Float". One word.
  std::string type;
  // Of one element, 1 to 64.
  size_t element_bytes = 0;
  std::vector<int64_t> shape;
};

// `count` elements from `begin` on, in row-major order.
struct ShardedRange {
  ShardedTensor tensor;
  int64_t begin = 0;
  int64_t count = 0;
  // Of the caller's; it is kept as it is until what it was given to says that it is done.
  const void* data = nullptr;
  // Another rank has the same, and a file gets it from there.
  bool elsewhere = false;
};

// One rank's. One thread.
class ShardedState {
 public:
  ShardedState(int rank, int ranks);
  ShardedState(ShardedState&&) noexcept;
  ShardedState& operator=(ShardedState&&) noexcept;
  ~ShardedState();

  // Ranges of 0 elements count for nothing. `owner` lives as long as this, to keep data alive.
  void Add(ShardedRange range, std::shared_ptr<const void> owner = nullptr);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::vector<ShardedRange>& ranges() const { return ranges_; }
  // Of the data.
  size_t bytes() const;

  // All of it, for MemoryCheckpoint::Save(), until whose Wait() this must live and not be changed:
  // SavedShards::FromMemory() reads it. INVALID_ARGUMENT, naming the tensor: ranges contradict each
  // other.
  Result<Span<const StatePart>> Parts(int64_t step);

 private:
  int rank_;
  int ranks_;
  std::vector<ShardedRange> ranges_;
  std::vector<std::shared_ptr<const void>> owners_;
  // Of the last Parts().
  std::unique_ptr<const std::string> head_;
  std::vector<StatePart> parts_;
};

// A state that was saved, read piece by piece, by any number of ranks. One thread.
class SavedShards {
 public:
  // Of what one rank's ShardedState::Parts() had: it has that rank's ranges alone. The bytes must
  // outlive this. DATA_LOSS: they are something else.
  static Result<SavedShards> FromMemory(Span<const char> bytes);
  // Of a folder of a sharded checkpoint, which has the ranges of all ranks. Reads its index alone.
  //   INVALID_ARGUMENT     it is no sharded checkpoint
  //   FAILED_PRECONDITION  of a newer format
  //   DATA_LOSS            it is damaged
  static Result<SavedShards> FromFolder(const std::string& folder);
  SavedShards(SavedShards&&) noexcept;
  SavedShards& operator=(SavedShards&&) noexcept;
  ~SavedShards();

  int64_t step() const;
  // That saved it.
  int ranks() const;
  bool in_memory() const;

  // Null: there is no such tensor.
  const ShardedTensor* Find(std::string_view name) const;
  std::vector<std::string> names() const;

  // Elements of a tensor to `to`; blocks while files are read. Each range that has some of them is
  // read whole and compared with its checksum.
  //   DATA_LOSS         naming the file: a part is missing, too short, or not what was written
  //   INVALID_ARGUMENT  there is no such tensor, or its element is not in this rank's memory
  Status Read(std::string_view name, int64_t begin, int64_t count, void* to) const;
  // As Read() of all that `rank` saved, without keeping it.
  Status Check(int rank) const;

 private:
  explicit SavedShards(std::unique_ptr<checkpoint::SavedParts> parts);

  std::unique_ptr<checkpoint::SavedParts> parts_;
};

}  // namespace cadre

#endif  // CADRE_SHARDED_STATE_H_
