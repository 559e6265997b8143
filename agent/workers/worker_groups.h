// Maps the supervisor's process groups (agent/supervisor/frames.h) to the node's workers: one group
// each, so that a worker can be stopped alone, or be kept for the next generation. Pure; one
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
  // Begins the next generation, in which only groups kept from the one before exist.
  void Begin(const std::set<uint32_t>& kept) {
    kept_ = kept;
    for (auto it = local_ranks_.begin(); it != local_ranks_.end();) {
      it = IsKept(it->second) ? std::next(it) : local_ranks_.erase(it);
    }
    kept_.clear();
    stopping_ = false;
  }
  // A group number that was never used. Numbers taken in succession are consecutive.
  uint64_t next() const { return last_ + 1; }
  uint64_t Take() { return ++last_; }
  // Records that the worker is started as this group.
  void Add(uint64_t group, uint32_t local_rank) {
    const bool added = local_ranks_.emplace(group, local_rank).second;
    CADRE_CHECK(added, "group ", group, " is used twice");
    last_ = std::max(last_, group);
  }

  // Returns nullopt if the group is not a worker of this generation.
  std::optional<uint32_t> LocalRank(uint64_t group) const {
    const auto found = local_ranks_.find(group);
    return found == local_ranks_.end() ? std::nullopt : std::make_optional(found->second);
  }
  const std::map<uint64_t, uint32_t>& all() const { return local_ranks_; }

  // Returns the existing groups that must be stopped, so that only kept local ranks are left.
  std::vector<uint64_t> Stop(const std::set<uint32_t>& kept) {
    stopping_ = true;
    kept_ = kept;
    std::vector<uint64_t> stopped;
    for (const auto& [group, local_rank] : local_ranks_) {
      if (!IsKept(local_rank)) stopped.push_back(group);
    }
    return stopped;
  }
  // The kept local ranks of the last Stop().
  const std::set<uint32_t>& kept() const { return kept_; }
  // Called when no process of the group is left.
  void Gone(uint64_t group) { local_ranks_.erase(group); }
  void AllGone() { local_ranks_.clear(); }
  // Whether a stop was requested, and only kept workers are left.
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
