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
// A process that stands by has this instead of a rank's. Its own number follows.
inline constexpr char kStandbyPrefix[] = "standby_";

// <job>/run_<run>, as v1::JobStatus names runs; without a run, of a job that no server ever knew,
// <job>.
inline std::string RunSubdirectory(const std::string& job, const std::string& run) {
  return run.empty() ? job : absl::StrCat(job, "/", kRunPrefix, run);
}

inline std::string GenerationSubdirectory(uint64_t generation) {
  return absl::StrCat(kGenerationPrefix, generation);
}

// Below a run's.
inline std::string RankSubdirectory(uint64_t generation, uint64_t rank) {
  return absl::StrCat(kGenerationPrefix, generation, "/", kRankPrefix, rank);
}

// Beside a log file: when what is in it was written. A line of each second in which a worker wrote,
// "1764381600123 4096\n": what begins at this byte came at this time, in milliseconds since 1970,
// or within kLogTimeStepMs after it.
inline std::string LogTimesPath(absl::string_view log_path) {
  return absl::StrCat(absl::StripSuffix(log_path, ".log"), ".times");
}
inline constexpr int64_t kLogTimeStepMs = 1000;

}  // namespace cadre

#endif  // CADRE_BASE_LOG_PATHS_H_
