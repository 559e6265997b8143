#include "agent/cluster/part_end.h"

#include <string.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/exit_codes.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

v1::PartBlame BlameFor(const supervisor::ExitedFrame& exited) {
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

// The last line that it wrote; may be empty.
absl::string_view LastLine(const supervisor::ExitedFrame& exited) {
  const std::vector<absl::string_view> lines =
      absl::StrSplit(exited.last_lines, '\n', absl::SkipWhitespace());
  return lines.empty() ? "" : absl::StripPrefix(lines.back(), "cadre: ");
}

// What it wrote before is no reason for that.
std::string KilledText(const supervisor::ExitedFrame& exited) {
  const absl::string_view line = LastLine(exited);
  return absl::StrCat("killed by ", SignalName(exited.signal),
                      exited.out_of_memory ? " for want of memory" : "",
                      line.empty() ? "" : "; it wrote last: ", line);
}

}  // namespace

v1::PartReport EndOfPart(const supervisor::ExitedFrame& exited) {
  v1::PartReport report;
  report.set_blame(BlameFor(exited));
  if (exited.exec_errno != 0) {
    report.set_text(absl::StrCat("its launcher could not be started: ", exited.exec_step, ": ",
                                 strerror(exited.exec_errno)));
    return report;
  }
  if (exited.signal != 0) {
    report.set_text(KilledText(exited));
    return report;
  }
  const std::string status = absl::StrCat("exit status ", exited.exit_code);
  const absl::string_view line = LastLine(exited);
  report.set_text(line.empty() ? status : absl::StrCat(line, " (", status, ")"));
  return report;
}

}  // namespace cadre::agent
