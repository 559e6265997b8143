#include "rendezvous/job/blame/early_end.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/job/report.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

// "rank 1", "ranks 0, 2", of ranks in order.
std::string Ranks(const std::vector<uint32_t>& ranks) {
  std::vector<std::string> first;
  for (size_t i = 0; i < std::min(ranks.size(), kFirstFew); ++i) {
    first.push_back(absl::StrCat(ranks[i]));
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FirstFew(first, ranks.size()));
}

}  // namespace

std::optional<v1::Failure> EarlyEnd(const state::Generation& generation,
                                    const std::vector<v1::Failure>& victims) {
  std::vector<uint32_t> succeeded, lost;
  for (uint32_t rank = 0; rank < generation.world_size(); ++rank) {
    if (generation.worker(rank) == saved::RANK_SUCCEEDED) succeeded.push_back(rank);
  }
  if (succeeded.empty()) return std::nullopt;
  for (const v1::Failure& victim : victims) lost.push_back(victim.rank());
  std::sort(lost.begin(), lost.end());
  const uint32_t rank = succeeded.front();
  const saved::Member& member = generation.member_of(rank);
  const uint32_t local_rank = rank - member.first_rank();
  const bool one = succeeded.size() == 1;
  v1::Failure failure = PlainFailure(
      v1::CRASH, member.node(), generation.number(),
      absl::StrCat(one ? rpc::WorkerName(rank, local_rank, member.node()) : Ranks(succeeded),
                   " ended with exit code 0 in generation ", generation.number(),
                   lost.size() == 1 ? " while another was still working; "
                                    : " while others were still working; ",
                   Ranks(lost), " lost ", one ? "it" : "them"));
  failure.set_rank(static_cast<int32_t>(rank));
  failure.set_local_rank(static_cast<int32_t>(local_rank));
  failure.mutable_exit();
  return failure;
}

}  // namespace cadre::job
