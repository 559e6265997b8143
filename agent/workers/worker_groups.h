// Which group of the supervisor's (agent/supervisor/frames.h) runs which of the node's workers: one
// each, so that a worker can be stopped alone and be kept for the next generation. Pure; one
// thread.
#ifndef CADRE_AGENT_WORKERS_WORKER_GROUPS_H_
#define CADRE_AGENT_WORKERS_WORKER_GROUPS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/check.h"

namespace cadre::agent {

class WorkerGroups {
 public:
  // The next generation: nothing is there but what was kept of the one before.
  void Begin(const std::set<uint32_t>& kept) {
    kept_ = kept;
    for (auto it = local_ranks_.begin(); it != local_ranks_.end();) {
      it = IsKept(it->second) ? std::next(it) : local_ranks_.erase(it);
    }
    kept_.clear();
    stopping_ = false;
  }
  // A number that was never used. Those that are taken one after the other follow each other.
  uint64_t next() const { return last_ + 1; }
  uint64_t Take() { return ++last_; }
  // The worker is started as this group.
  void Add(uint64_t group, uint32_t local_rank) {
    const bool added = local_ranks_.emplace(group, local_rank).second;
    CADRE_CHECK(added, "group ", group, " is used twice");
    last_ = std::max(last_, group);
  }

  // nullopt: the group is none of this generation's workers.
  std::optional<uint32_t> LocalRank(uint64_t group) const {
    const auto found = local_ranks_.find(group);
    return found == local_ranks_.end() ? std::nullopt : std::make_optional(found->second);
  }
  const std::map<uint64_t, uint32_t>& all() const { return local_ranks_; }

  // The groups to stop, of those that are there, so that only kept local ranks are left.
  std::vector<uint64_t> Stop(const std::set<uint32_t>& kept) {
    stopping_ = true;
    kept_ = kept;
    std::vector<uint64_t> stopped;
    for (const auto& [group, local_rank] : local_ranks_) {
      if (!IsKept(local_rank)) stopped.push_back(group);
    }
    return stopped;
  }
  // Of the last Stop().
  const std::set<uint32_t>& kept() const { return kept_; }
  // No process of the group is left.
  void Gone(uint64_t group) { local_ranks_.erase(group); }
  void AllGone() { local_ranks_.clear(); }
  // A stop was asked for, and nothing but kept workers is there.
  bool Stopped() const {
    return stopping_ && std::all_of(local_ranks_.begin(), local_ranks_.end(),
                                    [this](const auto& group) { return IsKept(group.second); });
  }

 private:
  bool IsKept(uint32_t local_rank) const { return kept_.count(local_rank) != 0; }

  uint64_t last_ = 0;
  std::map<uint64_t, uint32_t> local_ranks_;  // by group
  bool stopping_ = false;
  std::set<uint32_t> kept_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_GROUPS_H_
