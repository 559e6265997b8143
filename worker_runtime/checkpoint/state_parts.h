// How a rank's state becomes the index of its part, and the parts' indexes one. Stateless; any
// thread.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_PARTS_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cadre/memory_checkpoint.h"
#include "cadre/result.h"
#include "cadre/sharded_state.h"
#include "cadre/span.h"
#include "worker_runtime/checkpoint/file_reader.h"
#include "worker_runtime/checkpoint/state_index.h"

namespace cadre::checkpoint {

inline constexpr char kIndexFile[] = "data";
// "part_3".
std::string PartName(int rank);

// The ranges of a state that go into one part, and where their data is.
struct StatePieces {
  // Of one part, which has no checksums.
  StateIndex index;
  std::vector<StatePart> data;
};

// With `all`, also what files get from other ranks. INVALID_ARGUMENT, naming the tensor: it has
// another type or shape than before, or no such range.
Result<StatePieces> PiecesOf(const ShardedState& state, int64_t step, bool all);

// `data` is that of the one part, one range behind the other.
void AddChecksums(StateIndex& index, absl::string_view data);

// The index with which a file begins, and how many bytes it has. Errors name the file.
Result<StateIndex> ReadIndex(const FileReader& file, uint64_t* bytes);
// That of a part's file, in a folder, with how long it is; compares the file's size with it.
Result<StateIndex> ReadHead(const std::string& folder, int rank);

// One of all ranks' heads, in their order. INVALID_ARGUMENT, naming rank and tensor: they do not go
// together.
Result<StateIndex> MergeHeads(std::vector<StateIndex> heads);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_STATE_PARTS_H_
