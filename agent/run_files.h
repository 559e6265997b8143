// The files that an agent writes about a job: log paths, verdict.json, timeline.json, and the error
// file that the launcher's environment names. All but the last lie in directories owned by this
// user (base/own_files.h), because other users may write to the log directory. Called on the loop
// thread; blocks on the file system.
#ifndef CADRE_AGENT_RUN_FILES_H_
#define CADRE_AGENT_RUN_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"
#include "proto/job.pb.h"

namespace cadre::agent {

// The directories for the files of one run of a job, and of one rank (base/log_paths.h).
std::string RunDirectory(const std::string& log_dir, const std::string& job,
                         const std::string& run);
std::string RankDirectory(const std::string& run_directory, uint64_t generation, uint32_t rank);

// Atomically makes <log_dir>/<job>/<name> a link to the file or directory of this name in the run's
// directory.
absl::Status LinkToRun(const std::string& run_directory, const std::string& name);
// Removes the links in <log_dir>/<job> to generations of other runs. Their files stay.
void UnlinkOtherRuns(const std::string& run_directory);

// Makes log_dir/below for the files of one run, and missing directories above it. All directories
// of `below` belong to this user. On failure, errno is also stored in `error_number` if that is not
// null.
absl::Status MakeRunDirectory(const std::string& log_dir, const std::string& below,
                              int* error_number = nullptr);

// Replaces an empty directory by a link to another one below the same root. FAILED_PRECONDITION: it
// is not empty.
absl::Status LinkDirectory(const std::string& path, const std::string& to);

// Writes verdict.json and timeline.json, each atomically, with the field names of proto/job.proto
// and proto/failure.proto, and links them to <log_dir>/<job>.
absl::Status WriteVerdict(const std::string& run_directory, const v1::Verdict& verdict,
                          const v1::Timeline& timeline);

// Writes the verdict alone to this path, in the format of verdict.json.
absl::Status WriteVerdictFile(const std::string& path, const v1::Verdict& verdict);

// Removes verdict.json and timeline.json from a directory, so that those of an earlier run are not
// taken for this one's.
absl::Status RemoveVerdict(const std::string& directory);

// Returns a mark that differs between any two verdict.json files over time; empty: there is none.
std::string VerdictMark(const std::string& log_dir, const std::string& job);

// Returns the torchelastic error file of the root cause as torchrun passes it on: message.errorCode
// is added if the worker did not exit with 0. Content of another format is returned unchanged.
std::string WithErrorCode(const std::string& error_json, const v1::WorkerExit& exit);

// Atomically replaces the file, which lies in a directory owned by this user.
absl::Status WriteFile(const std::string& path, absl::string_view content);

// Does the same in a directory that another program chose and that may belong to any user.
absl::Status WriteFileAnywhere(const std::string& path, absl::string_view content);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_RUN_FILES_H_
