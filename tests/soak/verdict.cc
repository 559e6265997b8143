#include "tests/soak/verdict.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre {

std::vector<std::string> Growing(const std::vector<Series>& series) {
  std::vector<std::string> lines;
  for (const Series& one : series) {
    if (one.values.size() < kFewestLooks) continue;
    const auto third = static_cast<std::ptrdiff_t>(one.values.size() / 3);
    const int64_t first = *std::max_element(one.values.begin(), one.values.begin() + third);
    const int64_t last = *std::min_element(one.values.end() - third, one.values.end());
    const double allowed =
        static_cast<double>(first) * (1 + one.slack_part) + static_cast<double>(one.slack);
    if (static_cast<double>(last) <= allowed) continue;
    lines.push_back(absl::StrCat(one.name, " grew from at most ", first, " to at least ", last));
  }
  return lines;
}

}  // namespace cadre
