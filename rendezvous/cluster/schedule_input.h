// The state as the scheduler looks at it. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_INPUT_H_
#define CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_INPUT_H_

#include <vector>

#include "absl/time/time.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/cluster/rests.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/state/state.h"

namespace cadre::cluster {

std::vector<ScheduleNode> NodesToSchedule(const state::State& state, const Agents& agents);

// All jobs that want nodes or have some. `stop_margin`: as in CoreConfig.
std::vector<ScheduleJob> JobsToSchedule(const state::State& state, const Agents& agents,
                                        const Rests& rests, absl::Duration stop_margin);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_INPUT_H_
