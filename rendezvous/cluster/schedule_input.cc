#include "rendezvous/cluster/schedule_input.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace cadre::cluster {

std::vector<ScheduleNode> NodesToSchedule(const state::State& state, const Agents& agents) {
  std::vector<ScheduleNode> nodes;
  for (const auto& [name, known] : state.cluster.nodes) {
    const Agent* agent = agents.Find(name);
    ScheduleNode node;
    node.name = name;
    node.user = known.user();
    node.cpus = known.cpus();
    node.gpus = known.gpus();
    node.labels.insert(known.labels().begin(), known.labels().end());
    const bool here = agent != nullptr && agent->stream.has_value();
    node.closed = !here                       ? "away"
                  : known.drained()           ? "drained"
                  : !agent->leftovers.empty() ? "still ending an earlier job"
                                              : "";
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<ScheduleJob> JobsToSchedule(const state::State& state, const Agents& agents,
                                        const Rests& rests, absl::Duration stop_margin) {
  // What ended jobs still hold is held all the same.
  std::map<std::string, std::vector<HeldShare>> held;
  for (const auto& [id, part] : state.cluster.parts) {
    held[part.part().job()].push_back(
        {part.part().node(), Share{part.part().workers(), part.part().cpus(), part.part().gpus()},
         part.taken_back(), agents.Remains(part.part().node(), id)});
  }
  const std::map<uint64_t, std::set<std::string>> resting = rests.ByJob();
  std::vector<ScheduleJob> jobs;
  jobs.reserve(state.jobs.size());
  for (const auto& [name, job] : state.jobs) {
    if (job.user().empty()) continue;
    const auto holds = held.find(name);
    if (state::HasEnded(job.phase()) && holds == held.end()) continue;
    ScheduleJob& to = jobs.emplace_back();
    to.name = name;
    to.user = job.user();
    to.priority = job.saved.spec().priority();
    to.order = job.saved.submission().order();
    if (holds != held.end()) {
      to.held = std::move(holds->second);
      held.erase(holds);
    }
    if (state::HasEnded(job.phase())) {
      to.min = to.max = 0;
      continue;
    }
    to.min = job.policy.min;
    to.max = job.policy.max;
    to.unit = job.policy.unit;
    to.may_grow = job.policy.scale_up != v1::ElasticPolicy::NEVER;
    to.workers = job.saved.spec().workers_per_node();
    to.resources = job.saved.spec().resources();
    to.spread_over = job.saved.spec().placement().spread_over();
    to.pack = job.saved.spec().placement().pack();
    for (const v1::AvoidedNode& avoided : job.saved.submission().avoided()) {
      (avoided.unfit() ? to.unfit : to.avoid).insert(avoided.node());
    }
    if (const auto found = resting.find(to.order); found != resting.end()) {
      to.resting = found->second;
    }
    // Its workers may take that long to stop.
    to.limit = job.policy.total_timeout + job.policy.stop_grace + stop_margin;
    if (job.phase() != v1::QUEUED)
      to.ends = MonoTime::FromMicros(job.saved.times().created_us()) + to.limit;
  }
  // Of jobs that are forgotten.
  for (auto& [name, shares] : held) {
    ScheduleJob& to = jobs.emplace_back();
    to.name = name;
    to.held = std::move(shares);
    to.min = to.max = 0;
  }
  return jobs;
}

}  // namespace cadre::cluster
