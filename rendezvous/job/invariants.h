// What is always true of a job between two steps.
#ifndef CADRE_RENDEZVOUS_JOB_INVARIANTS_H_
#define CADRE_RENDEZVOUS_JOB_INVARIANTS_H_

#include <string>

#include "absl/status/status.h"
#include "rendezvous/job/deadlines.h"

namespace cadre::job {

// OK, or INTERNAL naming the job and what does not hold.
absl::Status CheckJob(const std::string& name, const View& view);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_INVARIANTS_H_
