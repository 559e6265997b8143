#include "agent/cluster/part_end.h"

#include <string.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/exit_codes.h"

namespace cadre {
namespace {

v1::PartBlame BlameFor(const ExitedFrame& exited) {
  if (exited.exec_errno != 0 || exited.signal != 0) return v1::BLAME_NODE;
  switch (exited.exit_code) {
    case kExitUsage:
    case kExitBadSpec:
      return v1::BLAME_JOB;
    case kExitTryLater:
      return v1::BLAME_NOBODY;
    default:
      return v1::BLAME_NODE;
  }
}

}  // namespace

v1::PartReport EndOfPart(const ExitedFrame& exited) {
  v1::PartReport report;
  report.set_id(exited.generation);
  report.set_blame(BlameFor(exited));
  if (exited.exec_errno != 0) {
    report.set_text(absl::StrCat("its launcher could not be started: ", exited.exec_step, ": ",
                                 strerror(exited.exec_errno)));
    return report;
  }
  const std::string status = exited.signal != 0 ? absl::StrCat("signal ", exited.signal)
                                                : absl::StrCat("exit status ", exited.exit_code);
  const std::vector<absl::string_view> lines =
      absl::StrSplit(exited.last_lines, '\n', absl::SkipWhitespace());
  report.set_text(
      lines.empty() ? status
                    : absl::StrCat(absl::StripPrefix(lines.back(), "cadre: "), " (", status, ")"));
  return report;
}

}  // namespace cadre
