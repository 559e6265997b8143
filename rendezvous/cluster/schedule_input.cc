#include "rendezvous/cluster/schedule_input.h"

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

Held HeldShares(const state::State& state, const Agents& agents) {
  Held held;
  for (const auto& [id, part] : state.cluster.parts) {
    held[part.part().job()].push_back(
        {part.part().node(), Share{part.part().workers(), part.part().cpus(), part.part().gpus()},
         part.taken_back(), agents.Remains(part.part().node(), id)});
  }
  return held;
}

ScheduleJob JobToSchedule(const state::Job& job, const Resting& resting,
                          absl::Duration stop_margin) {
  ScheduleJob to;
  to.name = job.name();
  to.user = job.user();
  to.priority = job.saved.spec().priority();
  to.order = job.saved.submission().order();
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
  return to;
}

std::vector<ScheduleJob> BegunJobs(const state::State& state, const std::set<std::string>& begun,
                                   Held held, const Resting& resting, absl::Duration stop_margin) {
  std::set<std::string> names = begun;
  for (const auto& [name, shares] : held) names.insert(name);
  std::vector<ScheduleJob> jobs;
  jobs.reserve(names.size());
  for (const std::string& name : names) {
    const auto job = state.jobs.find(name);
    ScheduleJob& to = jobs.emplace_back();
    if (job != state.jobs.end() && !state::HasEnded(job->second.phase())) {
      to = JobToSchedule(job->second, resting, stop_margin);
    } else {
      // What jobs hold that have ended, or are forgotten, is held all the same.
      to.name = name;
      to.min = to.max = 0;
    }
    if (const auto holds = held.find(name); holds != held.end()) to.held = std::move(holds->second);
  }
  return jobs;
}

}  // namespace cadre::cluster
