#include "worker_runtime/shared_memory/allocations.h"

#include <iterator>
#include <utility>

namespace cadre::shared_memory {

std::shared_ptr<void> Allocations::Add(const std::shared_ptr<Allocations>& allocations,
                                       Segments segments, int rank) {
  char* const data = segments[rank]->data();
  Entry entry;
  entry.bytes = segments[rank]->size();
  entry.segments = std::make_unique<const Segments>(std::move(segments));
  absl::MutexLock lock(&allocations->mutex_);
  // Numbered alike on all ranks, because all allocate in the same order.
  entry.number = allocations->count_++;
  allocations->entries_[data] = std::move(entry);
  allocations->version_.fetch_add(1);
  return std::shared_ptr<void>(data, [allocations](void* memory) {
    absl::MutexLock lock(&allocations->mutex_);
    allocations->entries_.erase(static_cast<const char*>(memory));
    allocations->version_.fetch_add(1);
  });
}

bool Allocations::LookUp(const void* data, size_t bytes, Allocation* found) const {
  absl::MutexLock lock(&mutex_);
  auto after = entries_.upper_bound(static_cast<const char*>(data));
  if (after == entries_.begin()) return false;
  const auto& [base, entry] = *std::prev(after);
  const Allocation here = {base, entry.bytes, entry.number, entry.segments.get(), version_.load()};
  if (!here.Holds(data, bytes)) return false;
  *found = here;
  return true;
}

}  // namespace cadre::shared_memory
