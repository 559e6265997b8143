// Where a job's time went, for people: what is durable of it, what its workers reported, and the
// recoveries that follow from both. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_TIMELINE_H_
#define CADRE_RENDEZVOUS_JOB_TIMELINE_H_

#include <string>

#include "proto/job.pb.h"
#include "rendezvous/job/progress_log.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

v1::Timeline MakeTimeline(const std::string& name, const state::Job& job,
                          const ProgressLog& progress);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_TIMELINE_H_
