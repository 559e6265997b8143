#include "worker_runtime/memory/files/memory_slots.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::memory {

MemorySlots::MemorySlots(std::string directory, std::string name, int count)
    : directory_(std::move(directory)), name_(std::move(name)), count_(count), written_(count) {}

std::string MemorySlots::Path(int slot) const {
  return absl::StrCat(directory_, "/", name_, ".", slot);
}

std::vector<SavedStep> MemorySlots::Whole() const {
  std::vector<SavedStep> whole;
  for (int slot = 0; slot < count_; ++slot) {
    const std::optional<SlotLabel> label = ReadLabel(Path(slot));
    if (label.has_value()) whole.push_back({*label, slot});
  }
  return whole;
}

std::optional<SavedStep> MemorySlots::Find(int64_t step, uint64_t generation) const {
  for (const SavedStep& saved : Whole()) {
    if (saved.step == step && saved.generation == generation) return saved;
  }
  return std::nullopt;
}

absl::StatusOr<char*> MemorySlots::Begin(size_t bytes) {
  std::vector<uint64_t> sequences(count_, 0);
  for (const SavedStep& saved : Whole()) sequences[saved.slot] = saved.sequence;
  const int reserved = reserved_;
  if (reserved != kNone) sequences[reserved] = std::numeric_limits<uint64_t>::max();
  const auto oldest = std::min_element(sequences.begin(), sequences.end());
  const int slot = static_cast<int>(oldest - sequences.begin());
  std::optional<MappedFile>& file = written_[slot];
  if (!file.has_value() || file->size() < kStateOffset + bytes) {
    ASSIGN_OR_RETURN(file, MappedFile::Writable(Path(slot), kStateOffset + bytes));
  }
  RETURN_IF_ERROR(EraseLabel(Path(slot)));
  begun_ = slot;
  begun_bytes_ = bytes;
  return file->data() + kStateOffset;
}

absl::Status MemorySlots::Commit(int64_t step, uint64_t generation, int world_size) {
  if (begun_ == kNone) return absl::FailedPreconditionError("no state was written");
  RETURN_IF_ERROR(DropAbove(step - 1));
  uint64_t newest = 0;
  for (const SavedStep& saved : Whole()) newest = std::max(newest, saved.sequence);
  const int slot = std::exchange(begun_, kNone);
  return WriteLabel(Path(slot), {step, generation, world_size, begun_bytes_, newest + 1});
}

absl::Status MemorySlots::DropAbove(int64_t step) {
  for (const SavedStep& saved : Whole()) {
    if (saved.step > step) RETURN_IF_ERROR(EraseLabel(Path(saved.slot)));
  }
  return absl::OkStatus();
}

}  // namespace cadre::memory
