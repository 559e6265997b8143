// What ranks exchange through a communicator: the members of a group, with a member's place in it,
// and the bytes of one rank.
#include "worker_runtime/backend/group.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"

namespace cadre::backend {
Result<std::vector<int>> GroupOf(Communicator& communicator, int color, int key) {
  std::vector<int32_t> own = {color, key};
  std::vector<int32_t> all(2 * communicator.size());
  // Waits without a limit, since the operation uses this memory until its turn is over.
  RETURN_IF_ERROR(communicator
                      .AllGather({own.data(), own.size(), DataType::kInt32},
                                 {all.data(), all.size(), DataType::kInt32})
                      ->Wait(std::chrono::nanoseconds::max()));
  std::vector<std::pair<int32_t, int>> members;  // key, rank
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (color >= 0 && all[2 * rank] == color) members.emplace_back(all[2 * rank + 1], rank);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& member : members) ranks.push_back(member.second);
  return ranks;
}

WorkerPlace PlaceOfMember(const std::vector<int>& nodes, int own, const WorkerPlace& place) {
  const int ranks = static_cast<int>(nodes.size());
  WorkerPlace member = place;
  member.rank = own;
  member.world_size = ranks;
  std::set<int> seen;
  int node = -1, first = 0;
  bool follow_each_other = true;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == 0 || nodes[rank] != nodes[rank - 1]) {
      follow_each_other = seen.insert(nodes[rank]).second && follow_each_other;
      ++node;
      first = rank;
    }
    if (rank == own) {
      member.node_rank = node;
      member.local_rank = rank - first;
    }
    if (node == member.node_rank && rank >= own) member.local_world_size = rank - first + 1;
  }
  member.nodes = node + 1;
  if (!follow_each_other) {
    member.local_rank = 0;
    member.local_world_size = 1;
    member.node_rank = own;
    member.nodes = ranks;
  }
  return member;
}

namespace {

// A backend may need a buffer of this size for one broadcast.
constexpr size_t kChunkBytes = size_t{64} << 20;

}  // namespace

Result<std::string> BroadcastBytes(Communicator& communicator, std::string bytes, int root,
                                   int64_t most, std::chrono::nanoseconds timeout) {
  auto size = static_cast<int64_t>(bytes.size());
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.Broadcast({&size, 1, DataType::kInt64}, root), timeout));
  if (size < 0 || size > most) {
    return DataLossError(absl::StrCat("rank ", root, " announced ", size, " bytes; at most ", most,
                                      " are accepted"));
  }
  bytes.resize(static_cast<size_t>(size));
  for (size_t at = 0; at < bytes.size(); at += kChunkBytes) {
    const Buffer chunk = {&bytes[at], std::min(kChunkBytes, bytes.size() - at), DataType::kUint8};
    RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Broadcast(chunk, root), timeout));
  }
  return bytes;
}

}  // namespace cadre::backend
