#include "rendezvous/core/invariants.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rendezvous/state/apply.h"
#include "rendezvous/state/policy.h"

namespace cadre {
namespace {

#define CADRE_HOLDS(condition, ...)                                          \
  do {                                                                       \
    if (!(condition)) return absl::InternalError(absl::StrCat(__VA_ARGS__)); \
  } while (false)

absl::Status CheckGeneration(const std::string& name, const JobState& job) {
  const GenerationState& generation = job.generation;
  uint32_t next_rank = 0, busy = 0, succeeded = 0, running = 0, assigned = 0;
  for (const MemberState& member : generation.members) {
    CADRE_HOLDS(member.first_rank == next_rank && member.slots > 0, "job ", name,
                ": ranks are not contiguous at node ", member.node);
    next_rank += member.slots;
    busy += !member.lost && !member.cleared;
    CADRE_HOLDS(generation.node_ranks.count(member.node) == 1, "job ", name, ": node ", member.node,
                " has no node rank");
    CADRE_HOLDS(member.lost || job.nodes.count(member.node) == 1, "job ", name, ": member ",
                member.node, " is neither in nor lost");
  }
  CADRE_HOLDS(generation.node_ranks.size() == generation.members.size(), "job ", name,
              ": a node is twice in one generation");
  CADRE_HOLDS(next_rank == generation.workers.size(), "job ", name, ": ranks are no bijection");
  for (const WorkerPhase worker : generation.workers) {
    succeeded += worker == WorkerPhase::kSucceeded;
    running += worker == WorkerPhase::kRunning;
    assigned += worker == WorkerPhase::kAssigned;
  }
  CADRE_HOLDS(busy == generation.nodes_busy && succeeded == generation.succeeded &&
                  running == generation.running &&
                  generation.started + assigned == generation.workers.size(),
              "job ", name, ": counts of workers or nodes are wrong");
  return absl::OkStatus();
}

absl::Status CheckPhase(const std::string& name, const JobState& job) {
  const GenerationState& generation = job.generation;
  if (job.phase == v1::RUNNING || job.phase == v1::STOPPING) {
    const uint32_t size = generation.members.size();
    CADRE_HOLDS(size >= job.policy.min && size <= job.policy.max && size % job.policy.unit == 0,
                "job ", name, ": a generation of ", size, " nodes");
  }
  CADRE_HOLDS(job.phase != v1::STOPPING || generation.nodes_busy > 0, "job ", name,
              ": waits for nobody to stop");
  CADRE_HOLDS(job.phase != v1::RUNNING || !generation.root_cause.has_value(), "job ", name,
              ": runs although it has failed");
  CADRE_HOLDS(job.phase != v1::RUNNING || generation.succeeded < generation.workers.size(), "job ",
              name, ": runs although all workers are done");
  CADRE_HOLDS(HasEnded(job.phase) == job.verdict.has_value(), "job ", name,
              ": phase and verdict disagree");
  CADRE_HOLDS(job.counted_restarts <= job.restart_count, "job ", name, ": miscounted restarts");
  CADRE_HOLDS(job.policy.restart_window != absl::InfiniteDuration() ||
                  job.counted_restarts <= job.policy.restart_max,
              "job ", name, ": restarted more often than allowed");
  CADRE_HOLDS(generation.collateral.size() <= kMaxCollateral && job.earlier.size() <= kMaxEarlier &&
                  job.timeline.generations_size() <= kMaxTimeline,
              "job ", name, ": a list has outgrown its bound");
  return absl::OkStatus();
}

absl::Status CheckLive(const Core::Impl& core, const std::string& name, const JobState& job,
                       const Live& live) {
  size_t open = 0, ready = 0;
  for (const auto& [node, link] : live.links) {
    open += link.stream.has_value();
    ready += link.stream.has_value() && !link.old_generation.exists();
    CADRE_HOLDS(
        link.timer == MonoTime::Never() || core.node_timers.count({link.timer, name, node}) == 1,
        "job ", name, ": node ", node, " has no timer");
    CADRE_HOLDS(link.timer != MonoTime::Never(), "job ", name, ": node ", node, " never expires");
    CADRE_HOLDS(HasEnded(job.phase) || job.nodes.count(node) == 1, "job ", name, ": ", node,
                " is connected and not in");
    if (!link.stream.has_value()) continue;
    const auto session = core.sessions.find(*link.stream);
    CADRE_HOLDS(session != core.sessions.end() && session->second.node == node &&
                    session->second.job == name,
                "job ", name, ": node ", node, " and its stream disagree");
  }
  CADRE_HOLDS(open == live.open && ready == live.ready, "job ", name, ": miscounted streams");
  CADRE_HOLDS(HasEnded(job.phase) || live.links.size() == job.nodes.size(), "job ", name,
              ": a node has no link");
  CADRE_HOLDS(job.phase == v1::RUNNING || live.keyspace.waiters() == 0, "job ", name,
              ": somebody waits in the store of a generation that does not run");
  return live.keyspace.CheckInvariants();
}

}  // namespace

absl::Status CheckCore(const Core::Impl& core) {
  size_t open = 0, links = 0, deadlines = 0;
  for (const auto& [name, live] : core.lives) {
    const auto job = core.state.jobs.find(name);
    CADRE_HOLDS(job != core.state.jobs.end(), "job ", name, " is gone, its connections are not");
    RETURN_IF_ERROR(CheckLive(core, name, job->second, live));
    open += live.open;
    links += live.links.size();
    deadlines += live.deadline != MonoTime::Never();
  }
  for (const auto& [name, job] : core.state.jobs) {
    RETURN_IF_ERROR(CheckGeneration(name, job));
    RETURN_IF_ERROR(CheckPhase(name, job));
  }
  CADRE_HOLDS(open == core.sessions.size(), "streams and links disagree");
  CADRE_HOLDS(links == core.node_timers.size(), "links and timers disagree");
  CADRE_HOLDS(deadlines == core.job_deadlines.size(), "jobs and deadlines disagree");
  CADRE_HOLDS(core.closing.size() <= kMaxClosingStreams, "too many closing streams");
  CADRE_HOLDS(core.state.ended_jobs.size() <= kMaxEndedJobs, "too many ended jobs");
  std::map<std::string, size_t> live;
  for (const auto& [name, job] : core.state.jobs) live[job.user] += !HasEnded(job.phase);
  for (const auto& [user, jobs] : live) {
    CADRE_HOLDS(core.state.by_user.Live(user) == jobs, "the jobs of ", user, " are miscounted");
  }
  CADRE_HOLDS(core.touched.empty(), "a job was left unfinished");
  return absl::OkStatus();
}

}  // namespace cadre
