#include "worker_runtime/shared_memory/copy_steps.h"

#include <algorithm>
#include <cstring>

namespace cadre::shared_memory {
namespace {

// FNV-1a over what ranks must know alike.
uint32_t Fingerprint(absl::Span<const size_t> counts) {
  uint32_t hash = 2166136261u;
  for (const size_t count : counts) {
    for (int shift = 0; shift < 64; shift += 8)
      hash = (hash ^ ((count >> shift) & 0xff)) * 16777619u;
  }
  return hash;
}

}  // namespace

BroadcastSteps::BroadcastSteps(const Buffer& buffer, int root)
    : buffer_(buffer), bytes_(buffer.count * SizeOf(buffer.type)), root_(root) {
  word_.kind = Collective::kBroadcast;
  word_.type = buffer.type;
  word_.root = static_cast<uint32_t>(root);
  word_.count = buffer.count;
}

BroadcastSteps BroadcastSteps::Barrier() {
  BroadcastSteps steps(Buffer{}, 0);
  steps.word_.kind = Collective::kBarrier;
  return steps;
}

void BroadcastSteps::Begin(Ground& ground) {
  is_shared_ = Publish(ground, word_, 1, static_cast<char*>(buffer_.data), bytes_);
  if (!is_shared_) CopyIn(ground);
}

absl::StatusOr<bool> BroadcastSteps::Next(Ground& ground) {
  if (last_) return true;
  if (!compared_) {
    compared_ = true;
    absl::Status agreed = Agree(ground);
    if (!agreed.ok()) return agreed;
    const Places places = ground.agreement.places;
    if (places == Places::kShared) {
      const char* const source =
          (*ground.allocation.segments)[root_]->data() + ground.meeting->own().offset;
      if (ground.rank() != root_) memcpy(buffer_.data, source, bytes_);
      last_ = true;
      return false;
    }
    if (places == Places::kMixed) {
      // The root may not have known that it had to stage.
      if (is_shared_) CopyIn(ground);
      return false;
    }
  }
  if (PieceBytes() > 0 && ground.rank() != root_) {
    memcpy(static_cast<char*>(buffer_.data) + done_, ground.Staging(root_), PieceBytes());
  }
  done_ += PieceBytes();
  ++ground.pieces;
  last_ = done_ == bytes_;
  if (!last_) CopyIn(ground);
  return false;
}

size_t BroadcastSteps::PieceBytes() const { return std::min(kStagingHalfBytes, bytes_ - done_); }

void BroadcastSteps::CopyIn(Ground& ground) {
  if (PieceBytes() == 0 || ground.rank() != root_) return;
  memcpy(ground.Staging(root_), static_cast<char*>(buffer_.data) + done_, PieceBytes());
}

GatherSteps::GatherSteps(Collective kind, const Buffer& input, const Buffer& output,
                         absl::Span<const size_t> counts)
    : input_(input), output_(output), offsets_(1, 0) {
  word_.kind = kind;
  word_.type = input.type;
  word_.root = kind == Collective::kAllGatherVarying ? Fingerprint(counts) : 0;
  word_.count = kind == Collective::kAllGatherVarying ? output.count : input.count;
  for (const size_t count : counts) {
    const size_t bytes = count * SizeOf(input.type);
    longest_ = std::max(longest_, bytes);
    offsets_.push_back(offsets_.back() + bytes);
  }
}

void GatherSteps::Begin(Ground& ground) {
  Publish(ground, word_, 1, nullptr, 0);
  CopyIn(ground);
}

absl::StatusOr<bool> GatherSteps::Next(Ground& ground) {
  if (last_) return true;
  if (!compared_) {
    compared_ = true;
    absl::Status agreed = Agree(ground);
    if (!agreed.ok()) return agreed;
  }
  CopyOut(ground);
  done_ = std::min(longest_, done_ + kStagingHalfBytes);
  ++ground.pieces;
  last_ = done_ == longest_;
  if (!last_) CopyIn(ground);
  return false;
}

size_t GatherSteps::PieceBytes(int rank) const {
  const size_t bytes = offsets_[rank + 1] - offsets_[rank];
  return bytes <= done_ ? 0 : std::min(kStagingHalfBytes, bytes - done_);
}

void GatherSteps::CopyIn(Ground& ground) {
  const size_t bytes = PieceBytes(ground.rank());
  if (bytes == 0) return;
  memcpy(ground.Staging(ground.rank()), static_cast<char*>(input_.data) + done_, bytes);
}

void GatherSteps::CopyOut(Ground& ground) {
  for (int peer = 0; peer < ground.size(); ++peer) {
    const size_t bytes = PieceBytes(peer);
    if (bytes == 0) continue;
    memcpy(static_cast<char*>(output_.data) + offsets_[peer] + done_, ground.Staging(peer), bytes);
  }
}

}  // namespace cadre::shared_memory
