// Commands use this to act on each of the jobs that their command lines name.
#ifndef CADRE_LAUNCHER_COMMANDS_CHANGE_JOBS_H_
#define CADRE_LAUNCHER_COMMANDS_CHANGE_JOBS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/commands/job_source.h"
#include "launcher/flags/settings.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// The most jobs of one command line; an array has as many elements.
inline constexpr size_t kMostJobs = 1000;

// The help text about the arguments JOB....
inline constexpr char kJobsHelp[] =
    "JOB is the name of a job, or the id that 'cadre status' shows for one that was submitted.\n"
    "The id of an array means all of its elements, 57_3 and 57_[1-3] mean elements of it.";

// The names and ids of single jobs: an array that has elements in `jobs` becomes those of them that
// have not ended; other words stay.
std::vector<std::string> SingleJobs(const std::vector<std::string>& words,
                                    const std::vector<v1::JobStatus>& jobs);

// Does `action` to each job that `words` name, and prints the line that it returns. A failure is
// printed, too, and the other jobs follow. Returns the exit status: 0, or that of the last failure.
int ForEachJob(const std::vector<std::string>& words, const Settings& settings,
               const std::function<absl::StatusOr<std::string>(JobSource&)>& action);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_CHANGE_JOBS_H_
