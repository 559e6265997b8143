// Which group of the supervisor's (agent/supervisor/frames.h) runs the launcher of which part.
// Pure; one thread.
#ifndef CADRE_AGENT_CLUSTER_PART_GROUPS_H_
#define CADRE_AGENT_CLUSTER_PART_GROUPS_H_

#include <cstdint>
#include <map>
#include <optional>

#include "base/check.h"

namespace cadre::agent {

class PartGroups {
 public:
  // A group for the part, which has none. It was never used, also where the part ran here before.
  uint64_t Add(uint64_t part) {
    const bool added = groups_.emplace(part, ++last_).second;
    CADRE_CHECK(added, "part ", part, " runs already");
    parts_.emplace(last_, part);
    return last_;
  }
  // Nothing of the part is left.
  void Remove(uint64_t part) {
    const auto found = groups_.find(part);
    CADRE_CHECK(found != groups_.end(), "part ", part, " does not run");
    parts_.erase(found->second);
    groups_.erase(found);
  }

  // nullopt: there is none.
  std::optional<uint64_t> GroupOf(uint64_t part) const { return Find(groups_, part); }
  std::optional<uint64_t> PartOf(uint64_t group) const { return Find(parts_, group); }

 private:
  using Numbers = std::map<uint64_t, uint64_t>;
  static std::optional<uint64_t> Find(const Numbers& numbers, uint64_t key) {
    const auto found = numbers.find(key);
    return found == numbers.end() ? std::nullopt : std::make_optional(found->second);
  }

  uint64_t last_ = 0;
  Numbers groups_;  // by part
  Numbers parts_;   // by group
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_PART_GROUPS_H_
