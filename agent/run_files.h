// The files an agent leaves about a job: log paths, verdict.json, timeline.json, and the error file
// of whoever started the launcher. Called on the loop thread; blocks on the file system.
#ifndef CADRE_AGENT_RUN_FILES_H_
#define CADRE_AGENT_RUN_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace cadre {

// <log_dir>/<job>/generation_<g>/rank_<r>
std::string RankDirectory(const std::string& log_dir, const std::string& job, uint64_t generation,
                          uint32_t rank);

// Makes the directory and those above it. A failure's errno goes to `error_number` too, where
// given.
absl::Status MakeDirectories(const std::string& path, int* error_number = nullptr);

// Makes an empty directory a link to another one below the same root. FAILED_PRECONDITION: it is
// not empty.
absl::Status LinkDirectory(const std::string& path, const std::string& to);
// Removes such a link, if there is one.
void RemoveLink(const std::string& path);

// Writes <log_dir>/<job>/verdict.json and timeline.json, each in one step, with the field names of
// proto/job.proto.
absl::Status WriteVerdict(const std::string& log_dir, const v1::Verdict& verdict,
                          const v1::Timeline& timeline);

// Removes verdict.json and timeline.json of an earlier run, so that they are not taken for this
// one's.
absl::Status RemoveVerdict(const std::string& log_dir, const std::string& job);

// Differs between any two verdict.json that are there at different times; empty: there is none.
std::string VerdictMark(const std::string& log_dir, const std::string& job);

// The torchelastic error file of the root cause as torchrun hands it on: message.errorCode is added
// where the worker did not end with 0. Content that is no such file is handed on as it is.
std::string WithErrorCode(const std::string& error_json, const v1::WorkerExit& exit);

// Replaces the file in one step.
absl::Status WriteFile(const std::string& path, absl::string_view content);

}  // namespace cadre

#endif  // CADRE_AGENT_RUN_FILES_H_
