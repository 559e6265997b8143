// The layout of a rank's segment, which all ranks of a communicator map: its control block, two
// halves of staging memory and a channel to each rank.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_LAYOUT_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker_runtime/shared_memory/control_block.h"
#include "worker_runtime/shared_memory/segment.h"

namespace cadre::shared_memory {

// One rank stages as much at a time. Two halves, so that a rank may fill one while others still
// read the other.
inline constexpr size_t kStagingHalfBytes = size_t{1} << 20;
inline constexpr size_t kControlBlockBytes = 4096;
// Of all channels of one rank together.
inline constexpr size_t kChannelsBytes = size_t{1} << 20;
inline constexpr size_t kMaxChannelBytes = size_t{128} << 10;

// One segment of each rank, in rank order.
using Segments = std::vector<std::unique_ptr<SharedSegment>>;

inline size_t ChannelBytes(int ranks) {
  return std::min(kMaxChannelBytes, kChannelsBytes / ranks / 4096 * 4096);
}
inline size_t SegmentBytes(int ranks) {
  return kControlBlockBytes + 2 * kStagingHalfBytes + ranks * ChannelBytes(ranks);
}
inline ControlBlock* ControlBlockOf(const SharedSegment& segment) {
  return reinterpret_cast<ControlBlock*>(segment.data());
}
// In rank order.
inline std::vector<ControlBlock*> ControlBlocksOf(const Segments& segments) {
  std::vector<ControlBlock*> blocks;
  for (const auto& segment : segments) blocks.push_back(ControlBlockOf(*segment));
  return blocks;
}
inline char* StagingOf(const SharedSegment& segment, uint64_t half) {
  return segment.data() + kControlBlockBytes + (half % 2) * kStagingHalfBytes;
}
inline char* ChannelOf(const SharedSegment& segment, int to, int ranks) {
  return segment.data() + kControlBlockBytes + 2 * kStagingHalfBytes + to * ChannelBytes(ranks);
}

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_SEGMENT_LAYOUT_H_
