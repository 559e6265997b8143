#include "agent/cluster/part_end.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/exit_report.h"
#include "base/exit_codes.h"

namespace cadre::agent {
namespace {

v1::PartBlame BlameFor(const supervisor::ExitedFrame& exited) {
  if (exited.exec_errno != 0) {
    return BlameForUnstarted(absl::ErrnoToStatusCode(static_cast<int>(exited.exec_errno)));
  }
  if (exited.signal != 0) return v1::BLAME_NODE;
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

}  // namespace

v1::PartBlame BlameForUnstarted(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return v1::BLAME_NOBODY;
    default:
      return v1::BLAME_NODE;
  }
}

v1::PartReport EndOfPart(const supervisor::ExitedFrame& exited) {
  v1::PartReport report;
  report.set_blame(BlameFor(exited));
  const std::string how = HowItEnded(exited);
  const absl::string_view line = LastLine(exited);
  if (line.empty() || exited.exec_errno != 0) {
    report.set_text(how);
  } else if (exited.signal != 0) {
    // What it wrote before is no reason for that.
    report.set_text(absl::StrCat(how, "; it wrote last: ", line));
  } else {
    report.set_text(absl::StrCat(line, " (", how, ")"));
  }
  return report;
}

}  // namespace cadre::agent
