// A server's jobs, for people. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_JOBS_TABLE_H_
#define CADRE_LAUNCHER_DISPLAY_JOBS_TABLE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace cadre::launcher {

// The table has so many bytes of the reason why a job waits or ended; `cadre why` shows all of it.
inline constexpr size_t kReasonBytes = 80;

// A table with a line for each job.
std::string JobsTable(const std::vector<v1::JobStatus>& jobs);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_JOBS_TABLE_H_
