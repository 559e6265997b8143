#include "cadre/sharded_state.h"

#include <utility>

#include "base/status_macros.h"
#include "worker_runtime/checkpoint/state_index.h"
#include "worker_runtime/checkpoint/state_parts.h"

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

}  // namespace cadre
