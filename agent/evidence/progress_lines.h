// What workers write to CADRE_PROGRESS_FD: lines of name=value words, such as
//   step=120 total=1000 samples_per_second=3400 loss=0.12 lr=0.001
// in any order, the last one a figure of the program's own. Pure; any thread.
#ifndef CADRE_AGENT_EVIDENCE_PROGRESS_LINES_H_
#define CADRE_AGENT_EVIDENCE_PROGRESS_LINES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// A line may have so many figures of the program's own. Their names have letters, digits, '_', '.'
// and '/', and are so long at most.
inline constexpr size_t kMaxMetrics = 8;
inline constexpr size_t kMaxMetricName = 32;

// What v1::Progress does not hold.
struct ProgressExtra {
  uint64_t total = 0;                     // steps that there will be; 0: not known
  std::map<std::string, double> metrics;  // "lr"
};

struct ProgressLine {
  v1::Progress progress;
  bool has_step = false;
  ProgressExtra extra;
};

// Values that are no numbers are left out; nullopt when nothing is left.
// A report needs no step: what is absent stays 0.
std::optional<ProgressLine> ParseProgressLine(absl::string_view line);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_PROGRESS_LINES_H_
