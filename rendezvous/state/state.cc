#include "rendezvous/state/state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cadre::state {

Generation::Generation(saved::Generation generation) : saved(std::move(generation)) {
  for (const saved::Member& member : saved.members()) {
    nodes_busy += !member.lost() && !member.cleared();
    node_ranks.emplace(member.node(), node_ranks.size());
  }
  for (const int worker : saved.workers()) {
    started += worker != saved::RANK_ASSIGNED;
    running += worker == saved::RANK_RUNNING;
    succeeded += worker == saved::RANK_SUCCEEDED;
  }
}

const saved::Member& Generation::member(uint32_t node_rank) const {
  CADRE_CHECK(node_rank < nodes(), "node rank ", node_rank, " of ", nodes());
  return saved.members(static_cast<int>(node_rank));
}

const saved::Member& Generation::member_of(uint32_t rank) const {
  const auto next =
      std::upper_bound(saved.members().begin(), saved.members().end(), rank,
                       [](uint32_t r, const saved::Member& m) { return r < m.first_rank(); });
  CADRE_CHECK(next != saved.members().begin() && rank < world_size(), "rank ", rank, " of ",
              world_size());
  return *std::prev(next);
}

saved::RankState Generation::worker(uint32_t rank) const {
  CADRE_CHECK(rank < world_size(), "rank ", rank, " of ", world_size());
  return saved.workers(static_cast<int>(rank));
}

const v1::Failure* Generation::root_cause() const {
  return saved.stop().has_root_cause() ? &saved.stop().root_cause() : nullptr;
}

Job::Job(saved::Job job)
    : saved(std::move(job)),
      policy(PolicyOf(saved.spec())),
      spec_bytes(HasEnded(saved.phase()) ? 0 : saved.spec().ByteSizeLong()) {}

}  // namespace cadre::state
