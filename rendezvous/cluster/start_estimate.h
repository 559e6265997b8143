// When the jobs of the queue are expected to begin, as a range: by playing what the scheduler will
// do, once with jobs that end as early as they usually do, and once with jobs that take all of
// their time. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_START_ESTIMATE_H_
#define CADRE_RENDEZVOUS_CLUSTER_START_ESTIMATE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "rendezvous/cluster/schedule.h"

namespace cadre::cluster {

struct StartRange {
  // Never: it is not known.
  MonoTime from = MonoTime::Never();
  MonoTime until = MonoTime::Never();
};

// Returns the ranges of the jobs that wait; those of which nothing is known are left out. `jobs` is
// the input of the last pass at `now`, host time. `usual`: how long a job usually runs; one that is
// not in it may end at any time. The ranges hold unless other jobs come or nodes change.
//
// It costs as much as the passes of the scheduler that it plays, and stops after some hundred
// thousand pairs of a job and a node: the ranges of jobs that begin later are not known.
std::map<std::string, StartRange> EstimateStarts(
    const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs, MonoTime now,
    const std::map<std::string, absl::Duration>& usual);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_START_ESTIMATE_H_
