#include "worker_runtime/checkpoint/state_parts.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "worker_runtime/checkpoint/crc32c.h"

namespace cadre::checkpoint {
namespace {

// The tensors of an index, by name.
class Tensors {
 public:
  explicit Tensors(StateIndex* index) : index_(*index) {}

  // INVALID_ARGUMENT: it is another than the one of that name that is there.
  Result<size_t> Place(IndexTensor tensor) {
    const auto [found, is_new] = places_.emplace(tensor.name, index_.tensors.size());
    if (is_new) {
      index_.tensors.push_back(std::move(tensor));
      return found->second;
    }
    const IndexTensor& before = index_.tensors[found->second];
    if (before.type == tensor.type && before.element_bytes == tensor.element_bytes &&
        before.shape == tensor.shape) {
      return found->second;
    }
    return InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' is ", Describe(tensor),
                                             ", and was ", Describe(before), " before"));
  }

 private:
  static std::string Describe(const IndexTensor& tensor) {
    return absl::StrCat(tensor.type, " [", absl::StrJoin(tensor.shape, ", "), "]");
  }

  StateIndex& index_;
  std::map<std::string, size_t> places_;
};

Status CheckRange(const ShardedRange& range, int64_t elements) {
  if (range.begin >= 0 && range.count >= 0 && range.begin <= elements &&
      range.count <= elements - range.begin && range.data != nullptr) {
    return OkStatus();
  }
  return InvalidArgumentError(absl::StrCat("tensor '", range.tensor.name, "' of ", elements,
                                           " elements has no ", range.count, " from ", range.begin,
                                           " on"));
}

Result<IndexTensor> TensorOf(const ShardedTensor& tensor) {
  const std::optional<int64_t> elements = ElementsOf(tensor.shape);
  if (!elements.has_value() || tensor.name.empty() || tensor.type.empty() ||
      tensor.type.find_first_of(" \n") != std::string::npos || tensor.element_bytes == 0 ||
      tensor.element_bytes > kMaxElementBytes) {
    return InvalidArgumentError(absl::StrCat("tensor '", tensor.name,
                                             "' has no name, no type of one word, no elements of ",
                                             "1 to ", kMaxElementBytes, " bytes, or no shape"));
  }
  return IndexTensor{tensor.name, tensor.type, tensor.element_bytes, tensor.shape, *elements};
}

}  // namespace

std::string PartName(int rank) { return absl::StrCat("part_", rank); }

Result<StatePieces> PiecesOf(const ShardedState& state, int64_t step, bool all) {
  StatePieces pieces;
  pieces.index.step = step;
  pieces.index.ranks = state.ranks();
  Tensors tensors(&pieces.index);
  IndexPart part;
  part.rank = state.rank();
  for (const ShardedRange& range : state.ranges()) {
    if (range.elsewhere && !all) continue;
    ASSIGN_OR_RETURN(IndexTensor tensor, TensorOf(range.tensor));
    RETURN_IF_ERROR(CheckRange(range, tensor.elements));
    const uint64_t bytes = static_cast<uint64_t>(range.count) * tensor.element_bytes;
    ASSIGN_OR_RETURN(const size_t place, tensors.Place(std::move(tensor)));
    part.ranges.push_back({place, range.begin, range.count, std::nullopt, part.data_bytes});
    part.data_bytes += bytes;
    pieces.data.push_back({range.data, bytes});
  }
  pieces.index.parts.push_back(std::move(part));
  return pieces;
}

void AddChecksums(StateIndex& index, absl::string_view data) {
  for (IndexRange& range : index.parts[0].ranges) {
    const uint64_t bytes =
        static_cast<uint64_t>(range.count) * index.tensors[range.tensor].element_bytes;
    range.crc32c = ExtendCrc32c(0, data.substr(range.offset, bytes));
  }
}

Result<StateIndex> ReadIndex(const FileReader& file, uint64_t* bytes) {
  const auto named = [&file](const Status& status) {
    return Status(status.code(), absl::StrCat(file.path(), ": ", status.message()));
  };
  std::string text(std::min<uint64_t>(file.bytes(), kFirstLineBytes), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, &text[0], text.size()));
  const Result<uint64_t> said = IndexBytes(text);
  if (!said.ok()) return named(said.status());
  text.resize(std::min(file.bytes(), *said));
  RETURN_IF_ERROR(file.ReadAt(0, &text[0], text.size()));
  Result<StateIndex> index = DecodeIndex(text);
  if (!index.ok()) return named(index.status());
  *bytes = *said;
  return index;
}

Result<StateIndex> ReadHead(const std::string& folder, int rank) {
  const std::string path = absl::StrCat(folder, "/", PartName(rank));
  ASSIGN_OR_RETURN(const std::unique_ptr<FileReader> file, FileReader::Open(path));
  uint64_t bytes = 0;
  ASSIGN_OR_RETURN(StateIndex index, ReadIndex(*file, &bytes));
  if (index.parts.size() != 1 || index.parts[0].rank != rank) {
    return DataLossError(absl::StrCat(path, ": it is not the part of rank ", rank));
  }
  IndexPart& part = index.parts[0];
  part.head_bytes = bytes;
  if (file->bytes() == part.head_bytes + part.data_bytes) return index;
  return DataLossError(absl::StrCat(path, " has ", file->bytes(), " bytes, and should have ",
                                    part.head_bytes + part.data_bytes));
}

Result<StateIndex> MergeHeads(std::vector<StateIndex> heads) {
  StateIndex merged;
  merged.step = heads[0].step;
  merged.ranks = static_cast<int>(heads.size());
  Tensors tensors(&merged);
  for (StateIndex& head : heads) {
    IndexPart& part = head.parts[0];
    const std::string who = absl::StrCat("rank ", part.rank, ": ");
    if (head.step != merged.step || head.ranks != merged.ranks) {
      return InvalidArgumentError(absl::StrCat(who, "it saves step ", head.step, " of ", head.ranks,
                                               " ranks, and rank 0 step ", merged.step, " of ",
                                               merged.ranks));
    }
    std::vector<size_t> places;
    for (IndexTensor& tensor : head.tensors) {
      const Result<size_t> place = tensors.Place(std::move(tensor));
      if (!place.ok()) {
        return InvalidArgumentError(absl::StrCat(who, place.status().message()));
      }
      places.push_back(*place);
    }
    for (IndexRange& range : part.ranges) range.tensor = places[range.tensor];
    merged.parts.push_back(std::move(part));
  }
  RETURN_IF_ERROR(CheckComplete(merged));
  return merged;
}

}  // namespace cadre::checkpoint
