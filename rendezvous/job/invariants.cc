#include "rendezvous/job/invariants.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rendezvous/state/limits.h"
#include "rendezvous/state/policy.h"

namespace cadre::job {
namespace {

#define CADRE_HOLDS(condition, ...)                                          \
  do {                                                                       \
    if (!(condition)) return absl::InternalError(absl::StrCat(__VA_ARGS__)); \
  } while (false)

absl::Status CheckGeneration(const std::string& name, const state::Job& job) {
  const state::Generation& generation = job.generation;
  uint32_t next_rank = 0, busy = 0, succeeded = 0, running = 0, assigned = 0;
  for (const saved::Member& member : generation.saved.members()) {
    CADRE_HOLDS(member.first_rank() == next_rank && member.slots() > 0, "job ", name,
                ": ranks are not contiguous at node ", member.node());
    next_rank += member.slots();
    busy += !member.lost() && !member.cleared();
    CADRE_HOLDS(generation.node_ranks.count(member.node()) == 1, "job ", name, ": node ",
                member.node(), " has no node rank");
    CADRE_HOLDS(member.lost() || job.nodes.count(member.node()) == 1, "job ", name, ": member ",
                member.node(), " is neither in nor lost");
  }
  CADRE_HOLDS(generation.node_ranks.size() == generation.nodes(), "job ", name,
              ": a node is twice in one generation");
  CADRE_HOLDS(next_rank == generation.world_size(), "job ", name, ": ranks are no bijection");
  for (const int worker : generation.saved.workers()) {
    succeeded += worker == saved::RANK_SUCCEEDED;
    running += worker == saved::RANK_RUNNING;
    assigned += worker == saved::RANK_ASSIGNED;
  }
  CADRE_HOLDS(busy == generation.nodes_busy && succeeded == generation.succeeded &&
                  running == generation.running &&
                  generation.started + assigned == generation.world_size(),
              "job ", name, ": counts of workers or nodes are wrong");
  return absl::OkStatus();
}

absl::Status CheckPhase(const std::string& name, const state::Job& job) {
  const state::Generation& generation = job.generation;
  if (job.phase() == v1::RUNNING || job.phase() == v1::STOPPING) {
    const uint32_t size = generation.nodes();
    CADRE_HOLDS(size >= job.policy.min && size <= job.policy.max && size % job.policy.unit == 0,
                "job ", name, ": a generation of ", size, " nodes");
  }
  CADRE_HOLDS(job.phase() != v1::STOPPING || generation.nodes_busy > 0, "job ", name,
              ": waits for nobody to stop");
  CADRE_HOLDS(job.phase() != v1::RUNNING || generation.root_cause() == nullptr, "job ", name,
              ": runs although it has failed");
  CADRE_HOLDS(job.phase() != v1::RUNNING || generation.succeeded < generation.world_size(), "job ",
              name, ": runs although all workers are done");
  CADRE_HOLDS(state::HasEnded(job.phase()) == job.saved.has_verdict(), "job ", name,
              ": phase and verdict disagree");
  CADRE_HOLDS(job.saved.restarts().counted() <= job.saved.restarts().all(), "job ", name,
              ": miscounted restarts");
  CADRE_HOLDS(job.policy.restart_window != absl::InfiniteDuration() ||
                  job.saved.restarts().counted() <= job.policy.restart_max,
              "job ", name, ": restarted more often than allowed");
  CADRE_HOLDS(generation.saved.stop().collateral_size() <= state::kMaxCollateral &&
                  job.saved.earlier_size() <= state::kMaxEarlier &&
                  job.saved.timeline().generations_size() <= state::kMaxTimeline,
              "job ", name, ": a list has outgrown its bound");
  return absl::OkStatus();
}

absl::Status CheckLive(const std::string& name, const View& view) {
  const Connections& connections = view.live.connections;
  const bool ended = state::HasEnded(view.job.phase());
  for (const auto& [node, connection] : connections.all()) {
    CADRE_HOLDS(ended || view.job.nodes.count(node) == 1, "job ", name, ": ", node,
                " is connected and not in");
    CADRE_HOLDS(!ended || connection.stream.has_value(), "job ", name, ": ", node,
                " is awaited though the job has ended");
  }
  CADRE_HOLDS(ended || connections.all().size() == view.job.nodes.size(), "job ", name,
              ": a node has no connection");
  CADRE_HOLDS(view.job.phase() == v1::RUNNING || view.live.store.waiters() == 0, "job ", name,
              ": somebody waits in the store of a generation that does not run");
  CADRE_HOLDS(!view.live.touched, "job ", name, ": was left unfinished");
  RETURN_IF_ERROR(connections.CheckInvariants());
  return view.live.store.CheckInvariants();
}

}  // namespace

absl::Status CheckJob(const std::string& name, const View& view) {
  RETURN_IF_ERROR(CheckGeneration(name, view.job));
  RETURN_IF_ERROR(CheckPhase(name, view.job));
  return CheckLive(name, view);
}

}  // namespace cadre::job
