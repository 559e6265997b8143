// What of a state lies where: the head of each rank's part, and of all parts together the index of
// a sharded checkpoint (see cadre/sharded_checkpoint.h). Text, so that people can read it:
//
//   cadre sharded state 1 000000000164       format, and bytes of all of this
//   step 418
//   ranks 4
//   tensors 1
//   Float 4 10,12 model.head.weight          type, bytes of an element, shape, name
//   part 0 164 1                             rank, bytes of its head, ranges
//   0 0 30 1b2c3d4f                          tensor, first element, elements, checksum
//   crc32c 5a6b7c8d
//
// A part's data comes behind its head, in the order of its ranges. Pure.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_INDEX_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::checkpoint {

struct IndexTensor {
  std::string name;
  std::string type;
  uint64_t element_bytes = 0;
  std::vector<int64_t> shape;
  // The shape's product.
  int64_t elements = 0;
};

struct IndexRange {
  size_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
  // Absent: nobody looks, as in memory.
  std::optional<uint32_t> crc32c;
  // Where its data begins, in bytes behind the part's head.
  uint64_t offset = 0;
};

struct IndexPart {
  int rank = 0;
  // 0: this is the head itself.
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

// Of the first line, which says how long all of it is.
inline constexpr size_t kFirstLineBytes = 35;
// Of one element.
inline constexpr uint64_t kMaxElementBytes = 64;
// More than any model needs: what says so is damaged.
inline constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;

// Offsets and sums of bytes are not written: they follow from the ranges.
std::string EncodeIndex(const StateIndex& index);
// `body` between a first line and a checksum that fit it.
std::string SealIndex(absl::string_view body);

// By the first line. INVALID_ARGUMENT: it is no index; FAILED_PRECONDITION: of a newer format.
Result<uint64_t> IndexBytes(absl::string_view first_line);
// As above, and DATA_LOSS, naming the line and what was expected: it is damaged.
Result<StateIndex> DecodeIndex(absl::string_view text);

// Whether each rank has a part and each element is in exactly one. INVALID_ARGUMENT, naming the
// tensor and the element.
Status CheckComplete(const StateIndex& index);

// The product, or nullopt where it is negative or too large.
std::optional<int64_t> ElementsOf(const std::vector<int64_t>& shape);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_INDEX_H_
