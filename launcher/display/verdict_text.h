// How the end of a job reads. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_VERDICT_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_VERDICT_TEXT_H_

#include <string>

#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// "was cancelled: SIGINT at node n0", "failed: rank 0 on n0 exited with code 1", "succeeded".
std::string OutcomeText(const v1::Verdict& verdict);

// The failure's block: root cause with its evidence, what followed, restarts. Lines with '\n'.
std::string VerdictText(const v1::Verdict& verdict, const std::string& log_dir,
                        absl::TimeZone zone);

// The same without its first line, which says that the job failed and why. Empty `log_dir`: it is
// not known.
std::string VerdictDetails(const v1::Verdict& verdict, const std::string& log_dir,
                           absl::TimeZone zone);

// One line: how long, how many generations, where the time went.
std::string SuccessText(const v1::Verdict& verdict, const v1::Timeline& timeline);

// The traceback of a torchelastic error file, or its message; empty when it is no such file.
std::string ErrorFileText(const std::string& error_json);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_VERDICT_TEXT_H_
