// Lists of host names, and of counts for each of them, in the compact forms of Slurm. Pure.
#ifndef CADRE_BASE_HOST_RANGES_H_
#define CADRE_BASE_HOST_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

inline constexpr size_t kMaxExpandedHosts = 100'000;
inline constexpr size_t kMaxHostNameBytes = 255;

// "n[1-3,5],m07" for n1, n2, n3, n5, m07, as `scontrol show hostlist` prints it: names stay in
// their order, and neighbours that differ only in the number at their end share a bracket.
std::string CompressHosts(const std::vector<std::string>& hosts);

// The names of "n[01-03,07],g-a[1-2]". Several brackets in one entry are a product, and zeros in
// front are kept. INVALID_ARGUMENT for a list that is malformed, or has more than kMaxExpandedHosts
// names or a name of more than kMaxHostNameBytes.
absl::StatusOr<std::vector<std::string>> ExpandHosts(absl::string_view list);

// "2(x3),1" for 2, 2, 2, 1.
std::string CompressCounts(const std::vector<uint32_t>& counts);

// The counts of "2(x3),1". INVALID_ARGUMENT for a text that is malformed, or has more than
// kMaxExpandedHosts counts.
absl::StatusOr<std::vector<uint32_t>> ExpandCounts(absl::string_view text);

}  // namespace cadre

#endif  // CADRE_BASE_HOST_RANGES_H_
