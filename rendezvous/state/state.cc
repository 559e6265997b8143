#include "rendezvous/state/state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/text.h"

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

std::string CommandText(const Job& job) {
  constexpr size_t kMostBytes = 256;
  const v1::JobSpec& spec = job.saved.spec();
  if (!spec.has_batch())
    return Shortened(OneLine(absl::StrJoin(spec.command(), " "), kMostBytes), kMostBytes);
  return spec.batch().name().empty() ? job.submitted_name()
                                     : OneLine(spec.batch().name(), kMostBytes);
}

std::vector<std::string> AllocatedNodes(const Cluster& cluster, const Job& job) {
  std::vector<std::string> nodes;
  for (const auto& [id, allocation] : cluster.allocations) {
    if (allocation.taken_back() || allocation.part().job() != job.name()) continue;
    const bool is_first = job.saved.spec().has_batch() && !allocation.part().holds();
    nodes.insert(is_first ? nodes.begin() : nodes.end(), allocation.part().node());
  }
  return nodes;
}

void JobsByUser::Add(const std::string& user, uint64_t ended) {
  Jobs& jobs = users_[user];
  if (ended == 0) {
    ++jobs.not_ended;
  } else {
    jobs.ended.insert(ended);
  }
}

void JobsByUser::Remove(const std::string& user, uint64_t ended) {
  const auto found = users_.find(user);
  if (found == users_.end()) return;
  Jobs& jobs = found->second;
  if (ended != 0) {
    jobs.ended.erase(ended);
  } else if (jobs.not_ended > 0) {
    --jobs.not_ended;
  }
  if (jobs.not_ended == 0 && jobs.ended.empty()) users_.erase(found);
}

void JobsByUser::Grow(const std::string& user, const Bytes& by) {
  for (Bytes* bytes : {&users_[user].bytes, &all_}) {
    bytes->specs += by.specs;
    bytes->stores += by.stores;
  }
}

void JobsByUser::Shrink(const std::string& user, const Bytes& by) {
  for (Bytes* bytes : {&users_[user].bytes, &all_}) {
    bytes->specs -= by.specs;
    bytes->stores -= by.stores;
  }
}

JobsByUser::Bytes JobsByUser::BytesOf(const std::string& user) const {
  const auto found = users_.find(user);
  return found == users_.end() ? Bytes() : found->second.bytes;
}

size_t JobsByUser::NotEnded(const std::string& user) const {
  const auto found = users_.find(user);
  return found == users_.end() ? 0 : found->second.not_ended;
}

uint64_t JobsByUser::NextToDrop() const {
  size_t most = 0;
  uint64_t oldest = 0;
  for (const auto& [user, jobs] : users_) {
    if (jobs.ended.empty() || jobs.ended.size() < most) continue;
    if (jobs.ended.size() == most && *jobs.ended.begin() > oldest) continue;
    most = jobs.ended.size();
    oldest = *jobs.ended.begin();
  }
  return oldest;
}

}  // namespace cadre::state
