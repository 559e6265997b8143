// A state that was saved, in files or in memory.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cadre/sharded_state.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/checkpoint/crc32c.h"
#include "worker_runtime/checkpoint/file_reader.h"
#include "worker_runtime/checkpoint/state_index.h"
#include "worker_runtime/checkpoint/state_parts.h"

namespace cadre {
namespace {

using checkpoint::FileReader;
using checkpoint::IndexPart;
using checkpoint::IndexRange;
using checkpoint::StateIndex;

// Of parts, at a time: a process may not have many more files open.
constexpr size_t kMostOpen = 64;

}  // namespace

struct SavedShards::Impl {
  // A range, and whose part it is in.
  struct Place {
    const IndexPart* part;
    const IndexRange* range;
  };

  StateIndex index;
  std::map<std::string, ShardedTensor, std::less<>> tensors;
  // Of each tensor, in the order of the elements.
  std::map<std::string, std::vector<Place>, std::less<>> places;
  // Where it is: one or the other.
  Span<const char> memory;
  std::string folder;
  mutable std::map<int, std::unique_ptr<FileReader>> open;
  mutable std::vector<char> buffer;

  void Arrange();
  std::string PathOf(int rank) const {
    return absl::StrCat(folder, "/", checkpoint::PartName(rank));
  }
  bool in_memory() const { return folder.empty(); }
  Result<const FileReader*> Open(const IndexPart& part) const;
  // The whole range at `to`, of whose size it is, compared with its checksum.
  Status ReadRange(const Place& place, char* to) const;
  uint64_t BytesOf(const IndexRange& range) const {
    return static_cast<uint64_t>(range.count) * index.tensors[range.tensor].element_bytes;
  }
};

void SavedShards::Impl::Arrange() {
  for (const checkpoint::IndexTensor& tensor : index.tensors) {
    tensors[tensor.name] = {tensor.name, tensor.type, tensor.element_bytes, tensor.shape};
  }
  for (const IndexPart& part : index.parts) {
    for (const IndexRange& range : part.ranges) {
      places[index.tensors[range.tensor].name].push_back({&part, &range});
    }
  }
  for (auto& [name, list] : places) {
    std::sort(list.begin(), list.end(),
              [](const Place& a, const Place& b) { return a.range->begin < b.range->begin; });
  }
}

Result<const FileReader*> SavedShards::Impl::Open(const IndexPart& part) const {
  const auto found = open.find(part.rank);
  if (found != open.end()) return found->second.get();
  Result<std::unique_ptr<FileReader>> file = FileReader::Open(PathOf(part.rank));
  if (file.status().code() == StatusCode::kNotFound) {
    return DataLossError(absl::StrCat(PathOf(part.rank), " is missing: it is one of ",
                                      index.parts.size(), " parts"));
  }
  RETURN_IF_ERROR(file.status());
  const uint64_t expected = part.head_bytes + part.data_bytes;
  if ((*file)->bytes() != expected) {
    return DataLossError(absl::StrCat(PathOf(part.rank), " has ", (*file)->bytes(),
                                      " bytes, and should have ", expected));
  }
  if (open.size() >= kMostOpen) open.clear();
  return (open[part.rank] = *std::move(file)).get();
}

Status SavedShards::Impl::ReadRange(const Place& place, char* to) const {
  const IndexPart& part = *place.part;
  const IndexRange& range = *place.range;
  const uint64_t at = part.head_bytes + range.offset, bytes = BytesOf(range);
  if (in_memory()) {
    std::memcpy(to, memory.data() + at, bytes);
    return OkStatus();
  }
  ASSIGN_OR_RETURN(const FileReader* const file, Open(part));
  RETURN_IF_ERROR(file->ReadAt(at, to, bytes));
  if (!range.crc32c.has_value() || *range.crc32c == checkpoint::ExtendCrc32c(0, {to, bytes})) {
    return OkStatus();
  }
  return DataLossError(absl::StrCat(PathOf(part.rank), ": elements ", range.begin, " to ",
                                    range.begin + range.count - 1, " of tensor '",
                                    index.tensors[range.tensor].name,
                                    "' are not what was written (the checksum differs)"));
}

SavedShards::SavedShards(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
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
  auto impl = std::make_unique<Impl>();
  impl->index = *std::move(index);
  impl->memory = bytes;
  impl->Arrange();
  return SavedShards(std::move(impl));
}

Result<SavedShards> SavedShards::FromFolder(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", checkpoint::kIndexFile);
  ASSIGN_OR_RETURN(const std::unique_ptr<FileReader> file, FileReader::Open(path));
  const auto named = [&path](const Status& status) {
    return Status(status.code(), absl::StrCat(path, ": ", status.message()));
  };
  std::string text(std::min<uint64_t>(file->bytes(), checkpoint::kFirstLineBytes), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, &text[0], text.size()));
  const Result<uint64_t> bytes = checkpoint::IndexBytes(text);
  if (!bytes.ok()) return named(bytes.status());
  text.resize(std::min(file->bytes(), checkpoint::kMaxIndexBytes));
  RETURN_IF_ERROR(file->ReadAt(0, &text[0], text.size()));
  Result<StateIndex> index = checkpoint::DecodeIndex(text);
  if (!index.ok()) return named(index.status());
  const Status complete = checkpoint::CheckComplete(*index);
  if (!complete.ok()) return named(DataLossError(complete.message()));
  auto impl = std::make_unique<Impl>();
  impl->index = *std::move(index);
  impl->folder = folder;
  impl->Arrange();
  return SavedShards(std::move(impl));
}

int64_t SavedShards::step() const { return impl_->index.step; }
int SavedShards::ranks() const { return impl_->index.ranks; }
bool SavedShards::in_memory() const { return impl_->in_memory(); }

const ShardedTensor* SavedShards::Find(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  return found == impl_->tensors.end() ? nullptr : &found->second;
}

std::vector<std::string> SavedShards::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : impl_->tensors) names.push_back(name);
  return names;
}

Status SavedShards::Read(std::string_view name, int64_t begin, int64_t count, void* to) const {
  const ShardedTensor* const tensor = Find(name);
  if (tensor == nullptr) {
    return InvalidArgumentError(absl::StrCat("no tensor '", ToAbsl(name), "' was saved"));
  }
  const auto list = impl_->places.find(name);
  const auto element = static_cast<int64_t>(tensor->element_bytes);
  char* const out = static_cast<char*>(to);
  int64_t next = begin;
  const int64_t end = begin + count;
  if (list != impl_->places.end()) {
    for (const Impl::Place& place : list->second) {
      const int64_t first = place.range->begin, behind = first + place.range->count;
      if (next >= end || behind <= next) continue;
      if (first > next) break;
      char* const here = out + (next - begin) * element;
      const int64_t until = std::min(behind, end);
      if (first == next && behind <= end) {
        RETURN_IF_ERROR(impl_->ReadRange(place, here));
      } else {
        impl_->buffer.resize(impl_->BytesOf(*place.range));
        RETURN_IF_ERROR(impl_->ReadRange(place, impl_->buffer.data()));
        std::memcpy(here, impl_->buffer.data() + (next - first) * element,
                    static_cast<size_t>((until - next) * element));
      }
      next = until;
    }
  }
  if (next >= end) return OkStatus();
  return InvalidArgumentError(absl::StrCat("element ", next, " of tensor '", ToAbsl(name),
                                           "' is not in what was saved by ",
                                           impl_->in_memory() ? "this rank" : "all ranks"));
}

Status SavedShards::Check(int rank) const {
  for (const IndexPart& part : impl_->index.parts) {
    if (part.rank != rank) continue;
    if (!impl_->in_memory()) RETURN_IF_ERROR(impl_->Open(part).status());
    for (const IndexRange& range : part.ranges) {
      impl_->buffer.resize(impl_->BytesOf(range));
      RETURN_IF_ERROR(impl_->ReadRange({&part, &range}, impl_->buffer.data()));
    }
  }
  return OkStatus();
}

}  // namespace cadre
