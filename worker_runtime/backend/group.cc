#include "worker_runtime/backend/group.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/status_macros.h"

namespace cadre::backend {

Result<std::vector<int>> GroupOf(Communicator& communicator, int color, int key) {
  std::vector<int32_t> own = {color, key};
  std::vector<int32_t> all(2 * communicator.size());
  // However long it waits for its turn: until then it uses the memory.
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

}  // namespace cadre::backend
