#include "cadre/same_options.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"

namespace cadre {
namespace {

// The bytes of each rank's text; the rest is cut.
constexpr size_t kTextBytes = 2048;

std::vector<std::string> LinesOf(const std::string& all, size_t rank) {
  const std::string text = all.substr(rank * kTextBytes, kTextBytes);
  return absl::StrSplit(text.substr(0, text.find('\0')), '\n');
}

// The first line that differs, or the last line that both have.
std::string Difference(const std::vector<std::string>& theirs,
                       const std::vector<std::string>& first, size_t rank) {
  size_t at = 0;
  while (at + 1 < std::min(theirs.size(), first.size()) && theirs[at] == first[at]) ++at;
  return absl::StrCat("rank ", rank, " has ", theirs[at], ", rank 0 has ", first[at],
                      "; all ranks must pass the same");
}

}  // namespace

Status CheckSameOptions(Communicator& communicator, const ChosenOptions& chosen,
                        std::chrono::nanoseconds timeout) {
  const auto ranks = static_cast<size_t>(communicator.size());
  if (ranks == 1) return OkStatus();
  std::string text = absl::StrJoin(chosen, "\n", absl::PairFormatter(" "));
  auto hash = static_cast<int64_t>(std::hash<std::string>()(text));
  std::vector<int64_t> hashes(ranks);
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllGather({&hash, 1, DataType::kInt64},
                                                     {hashes.data(), ranks, DataType::kInt64}),
                              timeout));
  // All ranks see the same hashes, and so agree on whether to exchange more.
  if (std::all_of(hashes.begin(), hashes.end(), [&](int64_t one) { return one == hash; })) {
    return OkStatus();
  }
  text.resize(kTextBytes, '\0');
  std::string all(kTextBytes * ranks, '\0');
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllGather({&text[0], text.size(), DataType::kUint8},
                                                     {&all[0], all.size(), DataType::kUint8}),
                              timeout));
  for (size_t rank = 1; rank < ranks; ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    return InvalidArgumentError(Difference(LinesOf(all, rank), LinesOf(all, 0), rank));
  }
  return OkStatus();
}

}  // namespace cadre
