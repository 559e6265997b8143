#include "worker_runtime/shared_memory/copy_steps.h"

#include <algorithm>
#include <cstring>

namespace cadre::shared_memory {

BroadcastSteps::BroadcastSteps(const Buffer& buffer, int root)
    : buffer_(buffer), bytes_(buffer.count * SizeOf(buffer.type)), root_(root) {
  call_.kind = Collective::kBroadcast;
  call_.type = buffer.type;
  call_.root = static_cast<uint32_t>(root);
  call_.count = buffer.count;
}

BroadcastSteps BroadcastSteps::Barrier() {
  BroadcastSteps steps(Buffer{}, 0);
  steps.call_.kind = Collective::kBarrier;
  return steps;
}

void BroadcastSteps::Begin(CollectiveContext& context) {
  is_shared_ = Publish(context, call_, 1, static_cast<char*>(buffer_.data), bytes_);
  if (!is_shared_) CopyIn(context);
}

Result<bool> BroadcastSteps::Next(CollectiveContext& context) {
  if (last_) return true;
  if (!compared_) {
    compared_ = true;
    Status agreed = Agree(context);
    if (!agreed.ok()) return agreed;
    const BufferMemory memory = context.agreement.memory;
    if (memory == BufferMemory::kShared) {
      const char* const source = SharedOf(context, root_, bytes_);
      if (context.rank() != root_) memcpy(buffer_.data, source, bytes_);
      last_ = true;
      return false;
    }
    if (memory == BufferMemory::kMixed) {
      // The root may not have known that it had to stage.
      if (is_shared_) CopyIn(context);
      return false;
    }
  }
  if (PieceBytes() > 0 && context.rank() != root_) {
    memcpy(static_cast<char*>(buffer_.data) + done_, context.Staging(root_), PieceBytes());
  }
  done_ += PieceBytes();
  ++context.pieces;
  last_ = done_ == bytes_;
  if (!last_) CopyIn(context);
  return false;
}

size_t BroadcastSteps::PieceBytes() const { return std::min(kStagingHalfBytes, bytes_ - done_); }

void BroadcastSteps::CopyIn(CollectiveContext& context) {
  if (PieceBytes() == 0 || context.rank() != root_) return;
  memcpy(context.Staging(root_), static_cast<char*>(buffer_.data) + done_, PieceBytes());
}

GatherSteps::GatherSteps(Collective kind, const Buffer& input, const Buffer& output,
                         Span<const size_t> counts)
    : input_(input), output_(output), offsets_(1, 0) {
  call_.kind = kind;
  call_.type = input.type;
  call_.root = kind == Collective::kAllGatherVarying ? FingerprintOf(counts) : 0;
  call_.count = kind == Collective::kAllGatherVarying ? output.count : input.count;
  for (const size_t count : counts) {
    const size_t bytes = count * SizeOf(input.type);
    longest_ = std::max(longest_, bytes);
    offsets_.push_back(offsets_.back() + bytes);
  }
}

void GatherSteps::Begin(CollectiveContext& context) {
  Publish(context, call_, 1, nullptr, 0);
  CopyIn(context);
}

Result<bool> GatherSteps::Next(CollectiveContext& context) {
  if (last_) return true;
  if (!compared_) {
    compared_ = true;
    Status agreed = Agree(context);
    if (!agreed.ok()) return agreed;
  }
  CopyOut(context);
  done_ = std::min(longest_, done_ + kStagingHalfBytes);
  ++context.pieces;
  last_ = done_ == longest_;
  if (!last_) CopyIn(context);
  return false;
}

size_t GatherSteps::PieceBytes(int rank) const {
  const size_t bytes = offsets_[rank + 1] - offsets_[rank];
  return bytes <= done_ ? 0 : std::min(kStagingHalfBytes, bytes - done_);
}

void GatherSteps::CopyIn(CollectiveContext& context) {
  const size_t bytes = PieceBytes(context.rank());
  if (bytes == 0) return;
  memcpy(context.Staging(context.rank()), static_cast<char*>(input_.data) + done_, bytes);
}

void GatherSteps::CopyOut(CollectiveContext& context) {
  for (int peer = 0; peer < context.size(); ++peer) {
    const size_t bytes = PieceBytes(peer);
    if (bytes == 0) continue;
    memcpy(static_cast<char*>(output_.data) + offsets_[peer] + done_, context.Staging(peer), bytes);
  }
}

}  // namespace cadre::shared_memory
