#include "worker_runtime/shared_memory/ground.h"

#include "absl/strings/str_cat.h"

namespace cadre {

bool Publish(Ground& ground, const CollectiveWord& word, double factor, const Buffer& shared) {
  RankLine& line = ground.meeting->own();
  const bool is_shared =
      shared.count > 0 &&
      ground.registry->Find(shared.data, shared.count * SizeOf(shared.type), &ground.allocation);
  const uint32_t allocation = is_shared ? ground.allocation.number : kNotRegistered;
  const uint64_t offset = is_shared ? static_cast<char*>(shared.data) - ground.allocation.base : 0;
  ground.meeting->BeginOperation();
  // A training loop says the same again and again: the line, which others look at, is left alone.
  if (!(line.word == word)) line.word = word;
  if (line.factor != factor) line.factor = factor;
  if (line.allocation != allocation) line.allocation = allocation;
  if (line.offset != offset) line.offset = offset;
  return is_shared;
}

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

}  // namespace cadre
