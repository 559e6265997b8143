// What workers write to CADRE_PROGRESS_FD: lines of name=value words, such as
//   step=120 total=1000 samples_per_second=3400 loss=0.12 lr=0.001
// in any order, the last one a figure of the program's own (rpc/figures.h). Pure; any thread.
#ifndef CADRE_AGENT_EVIDENCE_PROGRESS_LINES_H_
#define CADRE_AGENT_EVIDENCE_PROGRESS_LINES_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

struct ProgressLine {
  v1::Progress progress;
  bool has_step = false;
};

// Values that are no numbers are left out; nullopt when nothing is left.
// A report needs no step: what is absent stays 0.
std::optional<ProgressLine> ParseProgressLine(absl::string_view line);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_PROGRESS_LINES_H_
