#include "worker_runtime/shared_memory/collective_context.h"

#include "absl/strings/str_cat.h"

namespace cadre::shared_memory {
namespace {

absl::Status CheckSame(const Ground& ground) {
  const RankLine& first = ground.meeting->line(0);
  for (int rank = 1; rank < ground.size(); ++rank) {
    const RankLine& line = ground.meeting->line(rank);
    if (line.word == first.word) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks made different calls as collective ", line.operations(),
                     ": rank 0 ", Describe(first.word), ", rank ", rank, " ", Describe(line.word)));
  }
  return absl::OkStatus();
}

Places WherePublished(const Ground& ground) {
  const RankLine& first = ground.meeting->line(0);
  bool all_alike = true, any_shared = false;
  for (int rank = 0; rank < ground.size(); ++rank) {
    const RankLine& line = ground.meeting->line(rank);
    any_shared = any_shared || line.allocation != kNotRegistered;
    all_alike = all_alike && line.allocation == first.allocation && line.offset == first.offset;
  }
  if (!any_shared) return Places::kPrivate;
  return all_alike ? Places::kShared : Places::kMixed;
}

absl::Status AgreeAnew(Ground& ground) {
  absl::Status same = CheckSame(ground);
  if (!same.ok()) return same;
  Agreement& agreement = ground.agreement;
  ++agreement.number;
  agreement.places = WherePublished(ground);
  agreement.factors.resize(ground.size());
  agreement.editions.clear();
  for (const RankLine* other : ground.meeting->others()) {
    agreement.editions.push_back(other->edition);
  }
  agreement.is_current = true;
  agreement.is_scaled = false;
  for (int rank = 0; rank < ground.size(); ++rank) {
    const RankLine& line = ground.meeting->line(rank);
    agreement.factors[rank] = line.factor;
    agreement.is_scaled = agreement.is_scaled || line.factor != 1;
  }
  return absl::OkStatus();
}

}  // namespace

bool Publish(Ground& ground, const CollectiveWord& word, double factor, char* shared,
             size_t bytes) {
  RankLine& line = ground.meeting->own();
  const bool is_shared = bytes > 0 && ground.registry->Find(shared, bytes, &ground.allocation);
  const uint32_t allocation = is_shared ? ground.allocation.number : kNotRegistered;
  const uint64_t offset = is_shared ? shared - ground.allocation.base : 0;
  ground.meeting->BeginOperation();
  if (line.allocation == allocation && line.offset == offset && line.factor == factor &&
      line.word == word) {
    return is_shared;
  }
  ground.agreement.is_current = false;
  ++line.edition;
  line.allocation = allocation;
  line.offset = offset;
  line.factor = factor;
  line.word = word;
  return is_shared;
}

absl::Status Agree(Ground& ground) {
  return StillAgree(ground) ? absl::OkStatus() : AgreeAnew(ground);
}

}  // namespace cadre::shared_memory
