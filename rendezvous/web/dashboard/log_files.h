// The workers' output files of a job, where they lie on this machine:
// DIR/JOB/run_RUN/generation_G/rank_R/{stdout,stderr}.log. Reads the file system.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_LOG_FILES_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_LOG_FILES_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::web {

// A list names the newest generations, and the first ranks of each.
inline constexpr size_t kListedGenerations = 64;
inline constexpr size_t kListedRanks = 1024;

// {"generations": [{"generation": 2, "ranks": [0, 1]}, ...]}, newest first. Here and below an empty
// `run` is the newest one that is there.
std::string LogListJson(const std::string& log_dir, const std::string& job, const std::string& run);

// The same of what its timeline has.
std::string LogListJson(const v1::JobStatus& job);

// Parses a query: "generation", "rank" and "stream" (stdout or stderr). INVALID_ARGUMENT
// names what is missing.
absl::StatusOr<v1::ReadLogRequest> ParseLogQuery(const std::string& job,
                                                 const std::map<std::string, std::string>& query);

// The file below the log directory that the query asks for. Where a process that began elsewhere
// has the rank, the file is there. Errors as ParseLogQuery.
absl::StatusOr<std::string> LogPath(const std::string& log_dir, const std::string& job,
                                    const std::string& run,
                                    const std::map<std::string, std::string>& query);

// A job's name as the contract has it: safe in a path.
bool IsJobName(const std::string& name);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_LOG_FILES_H_
