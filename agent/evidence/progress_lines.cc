#include "agent/evidence/progress_lines.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "rpc/figures.h"

namespace cadre::agent {
std::optional<ProgressLine> ParseProgressLine(absl::string_view line) {
  ProgressLine parsed;
  v1::Progress& progress = parsed.progress;
  bool any = false;
  for (const absl::string_view word :
       absl::StrSplit(line, absl::ByAnyChar(" \t\r\n,"), absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    uint64_t step = 0;
    double number = 0;
    if (parts.first == "step" && absl::SimpleAtoi(parts.second, &step)) {
      progress.set_step(step);
      parsed.has_step = true;
      any = true;
    } else if (parts.first == "samples_per_second" && absl::SimpleAtod(parts.second, &number) &&
               std::isfinite(number)) {
      progress.set_samples_per_second(number);
      any = true;
    } else if (parts.first == "loss" && absl::SimpleAtod(parts.second, &number)) {
      // A loss that is not a number is what its reader most wants to see.
      progress.set_loss(number);
      any = true;
    } else if (parts.first == "total" && absl::SimpleAtoi(parts.second, &step)) {
      progress.set_total(step);
      any = true;
    } else if (absl::SimpleAtod(parts.second, &number) &&
               rpc::SetFigure(parts.first, number, progress.mutable_figures())) {
      any = true;
    }
  }
  if (!any) return std::nullopt;
  return parsed;
}

}  // namespace cadre::agent
