// Jobs of a server's accounting in the form in which the server tells of those that it still knows,
// so that what shows the ones shows the others. Pure.
#ifndef CADRE_LAUNCHER_SLURM_ACCOUNTED_JOB_H_
#define CADRE_LAUNCHER_SLURM_ACCOUNTED_JOB_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "proto/accounting.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// What the accounting knows of the job. Its name may be that of others too.
v1::JobStatus StatusOfAccounted(const v1::AccountedJob& job);

// Adds the jobs that `jobs` does not have, by their ids. Those that nobody submitted have none and
// are left out.
void AddAccounted(const std::vector<v1::AccountedJob>& accounted, std::vector<v1::JobStatus>* jobs);

// The ids of jobs and arrays in "57", "57.2", "57_3.batch"; and of these the ones that `jobs` may
// not have all of: of arrays it may have some elements only.
std::set<uint64_t> IdsIn(const std::set<std::string>& texts);
std::set<uint64_t> UnknownIds(const std::set<uint64_t>& ids,
                              const std::vector<v1::JobStatus>& jobs);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_ACCOUNTED_JOB_H_
