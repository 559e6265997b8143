// The state as the scheduler looks at it. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_INPUT_H_
#define CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_INPUT_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/state/state.h"

namespace cadre::cluster {

std::vector<ScheduleNode> NodesToSchedule(const state::State& state, const Agents& agents);

// Shares of nodes that are held, by job.
using Held = std::map<std::string, std::vector<HeldShare>>;
Held HeldShares(const state::State& state, const Agents& agents);

// A job in the queue or one that has begun, without what it holds. `resting`: of all jobs
// (Rests::ByJob). `stop_margin`: as in CoreConfig.
using Resting = std::map<uint64_t, std::set<std::string>>;
ScheduleJob JobToSchedule(const state::Job& job, const Resting& resting,
                          absl::Duration stop_margin);

// Those that have begun and those that hold something, whatever became of them; by name.
std::vector<ScheduleJob> BegunJobs(const state::State& state, const std::set<std::string>& begun,
                                   Held held, const Resting& resting, absl::Duration stop_margin);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_INPUT_H_
