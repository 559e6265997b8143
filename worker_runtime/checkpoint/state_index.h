// Describes where the ranges of a state lie: the head of each rank's part and, for all parts
// together, the index of a sharded checkpoint (see cadre/sharded_checkpoint.h). It is readable
// text:
//
//   cadre sharded state 1 000000000164       format, bytes of this whole text
//   step 418
//   ranks 4
//   tensors 1
//   Float 4 10,12 model.head.weight          type, bytes of an element, shape, name
//   part 0 164 1                             rank, bytes of its head, ranges
//   0 0 30 1b2c3d4f                          tensor, first element, elements, checksum
//   crc32c 5a6b7c8d
//
// A part's data follows its head, in the order of its ranges. Pure.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_INDEX_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cadre/memory_checkpoint.h"
#include "cadre/result.h"
#include "cadre/sharded_state.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/checkpoint/durable_file.h"

namespace cadre::checkpoint {

struct IndexTensor {
  std::string name;
  std::string type;
  uint64_t element_bytes = 0;
  std::vector<int64_t> shape;
  // The product of `shape`.
  int64_t elements = 0;
};

struct IndexRange {
  size_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
  // Absent where it is not checked, as in memory.
  std::optional<uint32_t> crc32c;
  // Where its data begins, in bytes after the part's head.
  uint64_t offset = 0;
};

struct IndexPart {
  int rank = 0;
  // 0 if this index is itself the part's head.
  uint64_t head_bytes = 0;
  std::vector<IndexRange> ranges;
  uint64_t data_bytes = 0;
};

struct StateIndex {
  int64_t step = 0;
  int ranks = 0;
  std::vector<IndexTensor> tensors;
  std::vector<IndexPart> parts;
};

// The length of the first line, which states the length of the whole text.
inline constexpr size_t kFirstLineBytes = 35;
// The limit for one element.
inline constexpr uint64_t kMaxElementBytes = 64;
// More than any model needs: an index that claims more is damaged.
inline constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;

// Offsets and sums of bytes are not written, because they follow from the ranges.
std::string EncodeIndex(const StateIndex& index);
// Encloses `body` in a first line and a checksum that match it.
std::string SealIndex(absl::string_view body);

// Returns the length that the first line states. INVALID_ARGUMENT: it is no index. DATA_LOSS: the
// line is damaged. FAILED_PRECONDITION: it has a newer format.
Result<uint64_t> IndexBytes(absl::string_view first_line);
// Errors are those above. DATA_LOSS: it is damaged; the text gives the line and what was expected.
Result<StateIndex> DecodeIndex(absl::string_view text);

// Checks that each rank has a part and each element is in exactly one. INVALID_ARGUMENT: the text
// names the tensor and the element.
Status CheckComplete(const StateIndex& index);

// Returns the product; nullopt if a size is negative or the product is too large.
std::optional<int64_t> ElementsOf(const std::vector<int64_t>& shape);

// Builds the index of a rank's part from its state, and merges the parts' indexes into one.
// Stateless; any thread.

inline constexpr char kIndexFile[] = "data";
// Returns a name such as "part_3".
std::string PartName(int rank);

// The ranges of a state that belong to one part, and where their data is.
struct StatePieces {
  // The index of that one part, without checksums.
  StateIndex index;
  std::vector<StatePart> data;
};

// With `all`, ranges are included that other ranks write to files. INVALID_ARGUMENT: a tensor,
// which the text names, has another type or shape than before, or lacks the range.
Result<StatePieces> PiecesOf(const ShardedState& state, int64_t step, bool all);

// `data` is the data of the index's only part, one range after the other.
void AddChecksums(StateIndex& index, absl::string_view data);

// Returns the index at the beginning of a file, and its length in `bytes`. Errors name the file.
Result<StateIndex> ReadIndex(const FileReader& file, uint64_t* bytes);
// Returns the index of a part's file in `folder`, with head_bytes set. DATA_LOSS: the file's size
// does not match it.
Result<StateIndex> ReadHead(const std::string& folder, int rank);

// Merges the heads of all ranks, given in rank order. INVALID_ARGUMENT: they do not match; the text
// names rank and tensor.
Result<StateIndex> MergeHeads(std::vector<StateIndex> heads);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_INDEX_H_
