#include "cadre/sharded_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/state_index.h"

namespace cadre {
ShardedState::ShardedState(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
ShardedState::ShardedState(ShardedState&&) noexcept = default;
ShardedState& ShardedState::operator=(ShardedState&&) noexcept = default;
ShardedState::~ShardedState() = default;

void ShardedState::Add(ShardedRange range, std::shared_ptr<const void> owner) {
  if (range.count == 0) return;
  ranges_.push_back(std::move(range));
  if (owner != nullptr) owners_.push_back(std::move(owner));
}

size_t ShardedState::bytes() const {
  size_t bytes = 0;
  for (const ShardedRange& range : ranges_) {
    bytes += static_cast<size_t>(range.count) * range.tensor.element_bytes;
  }
  return bytes;
}

Result<Span<const StatePart>> ShardedState::Parts(int64_t step) {
  ASSIGN_OR_RETURN(checkpoint::StatePieces pieces, checkpoint::PiecesOf(*this, step, /*all=*/true));
  head_ = std::make_unique<const std::string>(checkpoint::EncodeIndex(pieces.index));
  parts_ = std::move(pieces.data);
  parts_.insert(parts_.begin(), {head_->data(), head_->size()});
  return Span<const StatePart>(parts_);
}

// Reading of a saved state, from files or from memory.

namespace checkpoint {
namespace {

// The number of part files open at a time, because a process's descriptors are limited.
constexpr size_t kMostOpen = 64;
// The bytes of a file read at a time, because a range may be as large as all of a rank's data.
constexpr uint64_t kChunkBytes = 1 << 20;

}  // namespace

// The index of what was saved, and access to its ranges.
class SavedParts {
 public:
  // A range and the part that contains it.
  struct Place {
    const IndexPart* part;
    const IndexRange* range;
  };
  struct Tensor {
    ShardedTensor whole;
    // Sorted by the ranges' first elements.
    std::vector<Place> places;
  };

  // The state is in memory or in a folder: either `folder` or `memory` is empty.
  SavedParts(StateIndex index, Span<const char> memory, std::string folder);
  SavedParts(const SavedParts&) = delete;
  SavedParts& operator=(const SavedParts&) = delete;

  const StateIndex& index() const { return index_; }
  bool in_memory() const { return folder_.empty(); }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  // Returns null if there is no tensor of that name.
  const Tensor* Find(std::string_view name) const;

  // Opens the part and checks its size. DATA_LOSS: it is missing or has another size. The file
  // stays open until kMostOpen files are.
  Result<const FileReader*> Open(const IndexPart& part);
  // Reads the whole range and compares its checksum (in memory there is none). The `bytes` from
  // `begin` of the range on are copied to `to`.
  Status ReadRange(const Place& place, uint64_t begin, uint64_t bytes, char* to);

 private:
  std::string PathOf(int rank) const { return absl::StrCat(folder_, "/", PartName(rank)); }
  uint64_t BytesOf(const IndexRange& range) const {
    return static_cast<uint64_t>(range.count) * index_.tensors[range.tensor].element_bytes;
  }

  const StateIndex index_;
  const Span<const char> memory_;
  const std::string folder_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<int, std::unique_ptr<FileReader>> open_;
};

SavedParts::SavedParts(StateIndex index, Span<const char> memory, std::string folder)
    : index_(std::move(index)), memory_(memory), folder_(std::move(folder)) {
  for (const IndexTensor& tensor : index_.tensors) {
    tensors_[tensor.name].whole = {tensor.name, tensor.type, tensor.element_bytes, tensor.shape};
  }
  for (const IndexPart& part : index_.parts) {
    for (const IndexRange& range : part.ranges) {
      tensors_[index_.tensors[range.tensor].name].places.push_back({&part, &range});
    }
  }
  for (auto& [name, tensor] : tensors_) {
    std::sort(tensor.places.begin(), tensor.places.end(),
              [](const Place& a, const Place& b) { return a.range->begin < b.range->begin; });
  }
}

const SavedParts::Tensor* SavedParts::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<const FileReader*> SavedParts::Open(const IndexPart& part) {
  const auto found = open_.find(part.rank);
  if (found != open_.end()) return found->second.get();
  Result<std::unique_ptr<FileReader>> file = FileReader::Open(PathOf(part.rank));
  if (file.status().code() == StatusCode::kNotFound) {
    return DataLossError(absl::StrCat(PathOf(part.rank), " is missing: it is one of ",
                                      index_.parts.size(), " parts"));
  }
  RETURN_IF_ERROR(file.status());
  const uint64_t expected = part.head_bytes + part.data_bytes;
  if ((*file)->bytes() != expected) {
    return DataLossError(absl::StrCat(PathOf(part.rank), " has ", (*file)->bytes(),
                                      " bytes, and should have ", expected));
  }
  if (open_.size() >= kMostOpen) open_.clear();
  return (open_[part.rank] = *std::move(file)).get();
}

Status SavedParts::ReadRange(const Place& place, uint64_t begin, uint64_t bytes, char* to) {
  const IndexPart& part = *place.part;
  const IndexRange& range = *place.range;
  const uint64_t offset = part.head_bytes + range.offset, size = BytesOf(range);
  if (in_memory()) {
    std::memcpy(to, memory_.data() + offset + begin, bytes);
    return OkStatus();
  }
  ASSIGN_OR_RETURN(const FileReader* const file, Open(part));
  const auto chunk = std::make_unique<char[]>(std::min(kChunkBytes, size));
  uint32_t sum = 0;
  for (uint64_t at = 0; at < size;) {
    const uint64_t got = std::min(kChunkBytes, size - at);
    RETURN_IF_ERROR(file->ReadAt(offset + at, chunk.get(), got));
    sum = ExtendCrc32c(sum, {chunk.get(), got});
    const uint64_t from = std::max(at, begin), until = std::min(at + got, begin + bytes);
    if (from < until) std::memcpy(to + (from - begin), chunk.get() + (from - at), until - from);
    at += got;
  }
  if (!range.crc32c.has_value() || *range.crc32c == sum) return OkStatus();
  return DataLossError(absl::StrCat(PathOf(part.rank), ": elements ", range.begin, " to ",
                                    range.begin + range.count - 1, " of tensor '",
                                    index_.tensors[range.tensor].name,
                                    "' are not what was written (the checksum differs)"));
}

}  // namespace checkpoint

using checkpoint::FileReader;
using checkpoint::IndexPart;
using checkpoint::IndexRange;
using checkpoint::SavedParts;
using checkpoint::StateIndex;

SavedShards::SavedShards(std::unique_ptr<SavedParts> parts) : parts_(std::move(parts)) {}
SavedShards::SavedShards(SavedShards&&) noexcept = default;
SavedShards& SavedShards::operator=(SavedShards&&) noexcept = default;
SavedShards::~SavedShards() = default;

Result<SavedShards> SavedShards::FromMemory(Span<const char> bytes) {
  const absl::string_view text(bytes.data(), bytes.size());
  const auto named = [](const auto&... what) {
    return DataLossError(absl::StrCat("the state in memory is no sharded state: ", what...));
  };
  const Result<uint64_t> head = checkpoint::IndexBytes(text);
  if (!head.ok()) return named(head.status().message());
  Result<StateIndex> index = checkpoint::DecodeIndex(text.substr(0, *head));
  if (!index.ok()) return named(index.status().message());
  if (index->parts.size() != 1) return named("it has ", index->parts.size(), " parts");
  IndexPart& part = index->parts[0];
  part.head_bytes = *head;
  if (text.size() - *head != part.data_bytes) {
    return named("it has ", text.size(), " bytes, and should have ", *head + part.data_bytes);
  }
  return SavedShards(std::make_unique<SavedParts>(*std::move(index), bytes, ""));
}

Result<SavedShards> SavedShards::FromFolder(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", checkpoint::kIndexFile);
  ASSIGN_OR_RETURN(const std::unique_ptr<FileReader> file, FileReader::Open(path));
  uint64_t bytes = 0;
  ASSIGN_OR_RETURN(StateIndex index, checkpoint::ReadIndex(*file, &bytes));
  if (file->bytes() != bytes) {
    return DataLossError(
        absl::StrCat(path, ": it has ", file->bytes(), " bytes, and should have ", bytes));
  }
  const Status complete = checkpoint::CheckComplete(index);
  if (!complete.ok()) return DataLossError(absl::StrCat(path, ": ", complete.message()));
  return SavedShards(std::make_unique<SavedParts>(std::move(index), Span<const char>(), folder));
}

int64_t SavedShards::step() const { return parts_->index().step; }
int SavedShards::ranks() const { return parts_->index().ranks; }
bool SavedShards::in_memory() const { return parts_->in_memory(); }

const ShardedTensor* SavedShards::Find(std::string_view name) const {
  const SavedParts::Tensor* const tensor = parts_->Find(name);
  return tensor == nullptr ? nullptr : &tensor->whole;
}

std::vector<std::string> SavedShards::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parts_->tensors()) names.push_back(name);
  return names;
}

Status SavedShards::Read(std::string_view name, int64_t begin, int64_t count, void* to) const {
  const SavedParts::Tensor* const tensor = parts_->Find(name);
  if (tensor == nullptr) {
    return InvalidArgumentError(absl::StrCat("no tensor '", ToAbsl(name), "' was saved"));
  }
  const uint64_t element = tensor->whole.element_bytes;
  char* const out = static_cast<char*>(to);
  int64_t next = begin;
  const int64_t end = begin + count;
  for (const SavedParts::Place& place : tensor->places) {
    const int64_t first = place.range->begin, behind = first + place.range->count;
    if (next >= end || behind <= next) continue;
    if (first > next) break;
    const int64_t until = std::min(behind, end);
    RETURN_IF_ERROR(parts_->ReadRange(place, static_cast<uint64_t>(next - first) * element,
                                      static_cast<uint64_t>(until - next) * element,
                                      out + static_cast<uint64_t>(next - begin) * element));
    next = until;
  }
  if (next >= end) return OkStatus();
  return InvalidArgumentError(absl::StrCat("element ", next, " of tensor '", ToAbsl(name),
                                           "' is not in what was saved by ",
                                           in_memory() ? "this rank" : "all ranks"));
}

Status SavedShards::Check(int rank) const {
  for (const IndexPart& part : parts_->index().parts) {
    if (part.rank != rank || in_memory()) continue;
    RETURN_IF_ERROR(parts_->Open(part).status());
    for (const IndexRange& range : part.ranges) {
      RETURN_IF_ERROR(parts_->ReadRange({&part, &range}, 0, 0, nullptr));
    }
  }
  return OkStatus();
}

}  // namespace cadre
