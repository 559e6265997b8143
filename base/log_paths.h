// How the directories below a job's log_dir are named: JOB/run_RUN/generation_G/rank_R. Pure.
#ifndef CADRE_BASE_LOG_PATHS_H_
#define CADRE_BASE_LOG_PATHS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace cadre {

// A number, or a run's name, follows.
inline constexpr char kRunPrefix[] = "run_";
inline constexpr char kGenerationPrefix[] = "generation_";
inline constexpr char kRankPrefix[] = "rank_";
// A standby process has this and its own number in place of a rank.
inline constexpr char kStandbyPrefix[] = "standby_";

// <job>/run_<run>, with the name of the run as in v1::JobStatus; <job> alone if the run has no
// name, because its job never reached a server.
inline std::string RunSubdirectory(const std::string& job, const std::string& run) {
  return run.empty() ? job : absl::StrCat(job, "/", kRunPrefix, run);
}

inline std::string GenerationSubdirectory(uint64_t generation) {
  return absl::StrCat(kGenerationPrefix, generation);
}

// Relative to the run's directory.
inline std::string RankSubdirectory(uint64_t generation, uint64_t rank) {
  return absl::StrCat(kGenerationPrefix, generation, "/", kRankPrefix, rank);
}

// The file beside a log file that says when its content was written. It has at most one line for
// each second: "1764381600123 4096\n" says that the bytes from offset 4096 on were written at this
// time in milliseconds since 1970, or within kLogTimeStepMs after it.
inline std::string LogTimesPath(absl::string_view log_path) {
  return absl::StrCat(absl::StripSuffix(log_path, ".log"), ".times");
}
inline constexpr int64_t kLogTimeStepMs = 1000;

}  // namespace cadre

#endif  // CADRE_BASE_LOG_PATHS_H_
