// The text about the end of a job. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_VERDICT_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_VERDICT_TEXT_H_

#include <string>

#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// "was cancelled: SIGINT at node n0", "failed: rank 0 on n0 exited with code 1", "succeeded".
std::string OutcomeText(const v1::Verdict& verdict);

struct VerdictStyle {
  // The directory that contains the runs' log directories; empty: it is not known.
  std::string log_dir;
  absl::TimeZone zone = absl::LocalTimeZone();
  // Whether colours highlight the first line and, in a traceback, the user's own lines.
  bool color = false;
};

// The line in the colour of the job's outcome.
std::string Headline(const v1::Verdict& verdict, const std::string& line);

// The failure's block: the root cause with its evidence, its consequences, and restarts. Lines with
// '\n'.
std::string VerdictText(const v1::Verdict& verdict, const VerdictStyle& style);

// The block without its first line, for callers that have printed already that the job failed and
// why. It begins with a line about the root cause if the first line does not name it.
std::string VerdictDetails(const v1::Verdict& verdict, const VerdictStyle& style);

// One line: how long the job took, its last step, and its restarts.
std::string SuccessText(const v1::Verdict& verdict, const v1::Timeline& timeline, bool color);

// The traceback of a torchelastic error file, or its message; empty if it is no such file.
std::string ErrorFileText(const std::string& error_json);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_VERDICT_TEXT_H_
