// The files an agent leaves about a job: log paths, verdict.json, timeline.json, and the error file
// of whoever started the launcher. All but the last lie in own directories (base/own_files.h):
// other users may write to the log directory. Called on the loop thread; blocks on the file system.
#ifndef CADRE_AGENT_RUN_FILES_H_
#define CADRE_AGENT_RUN_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"
#include "proto/job.pb.h"

namespace cadre::agent {

// Where one run of a job leaves its files, and one rank (base/log_paths.h).
std::string RunDirectory(const std::string& log_dir, const std::string& job,
                         const std::string& run);
std::string RankDirectory(const std::string& run_directory, uint64_t generation, uint32_t rank);

// Makes <log_dir>/<job>/<name> lead to the file or directory of this name in the run's, in one
// step.
absl::Status LinkToRun(const std::string& run_directory, const std::string& name);
// Removes what leads from <log_dir>/<job> to generations of other runs. Their files stay.
void UnlinkOtherRuns(const std::string& run_directory);

// Makes log_dir/below for one run's files, and what is missing above it; all of `below` is this
// user's own. A failure's errno goes to `error_number` too, where given.
absl::Status MakeRunDirectory(const std::string& log_dir, const std::string& below,
                              int* error_number = nullptr);

// Makes an empty directory a link to another one below the same root. FAILED_PRECONDITION: it is
// not empty.
absl::Status LinkDirectory(const std::string& path, const std::string& to);

// Writes verdict.json and timeline.json, each in one step, with the field names of proto/job.proto
// and proto/failure.proto, and links them to <log_dir>/<job>.
absl::Status WriteVerdict(const std::string& run_directory, const v1::Verdict& verdict,
                          const v1::Timeline& timeline);

// The verdict alone, as in verdict.json, at this path.
absl::Status WriteVerdictFile(const std::string& path, const v1::Verdict& verdict);

// Removes the names verdict.json and timeline.json in a directory, so that those of an earlier run
// are not taken for this one's.
absl::Status RemoveVerdict(const std::string& directory);

// Differs between any two verdict.json that are there at different times; empty: there is none.
std::string VerdictMark(const std::string& log_dir, const std::string& job);

// The torchelastic error file of the root cause as torchrun hands it on: message.errorCode is added
// where the worker did not end with 0. Content that is no such file is handed on as it is.
std::string WithErrorCode(const std::string& error_json, const v1::WorkerExit& exit);

// Replaces the file, which lies in an own directory, in one step.
absl::Status WriteFile(const std::string& path, absl::string_view content);

// The same in a directory that somebody else chose, which may be anybody's.
absl::Status WriteFileAnywhere(const std::string& path, absl::string_view content);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_RUN_FILES_H_
