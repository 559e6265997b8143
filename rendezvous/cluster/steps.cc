#include "rendezvous/cluster/steps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/cluster/allocations.h"
#include "rendezvous/state/policy.h"
#include "rpc/node_memory.h"

namespace cadre::cluster {
namespace {

// A share that may be negative for a moment, while steps overlap.
struct Room {
  int64_t cpus = 0;
  int64_t gpus = 0;
  int64_t memory = 0;
};

Room RoomOf(const v1::Part& allocation) {
  return {allocation.cpus(), allocation.gpus(), static_cast<int64_t>(allocation.memory())};
}

void Take(const v1::Part& allocation, Room* room) {
  room->cpus -= allocation.cpus();
  room->gpus -= allocation.gpus();
  room->memory -= static_cast<int64_t>(allocation.memory());
}

// A batch job without a memory limit leaves its steps unlimited too.
bool Fits(const Share& share, const Room& room, bool counts_memory) {
  return share.cpus <= room.cpus && share.gpus <= room.gpus &&
         (!counts_memory || static_cast<int64_t>(share.memory) <= room.memory);
}

bool Overlaps(const state::State& state, const std::string& name) {
  const state::Job* job = FindJob(state, name);
  return job != nullptr && job->saved.spec().slurm_step().overlap();
}

// The allocations of a batch job that are not being taken back, in the order in which they were
// placed, and what its steps leave free of each.
struct BatchAllocation {
  v1::Part part;
  Room free;
};
std::vector<BatchAllocation> AllocationsOf(const state::Job& batch, const state::State& state) {
  std::vector<BatchAllocation> all;
  std::map<uint64_t, size_t> index;
  for (const auto& [id, allocation] : state.cluster.allocations) {
    if (allocation.taken_back() || allocation.part().job() != batch.name()) continue;
    index[id] = all.size();
    all.push_back({allocation.part(), RoomOf(allocation.part())});
  }
  for (const auto& [id, allocation] : state.cluster.allocations) {
    const auto found = index.find(allocation.part().within());
    if (found == index.end() || Overlaps(state, allocation.part().job())) continue;
    Take(allocation.part(), &all[found->second].free);
  }
  return all;
}

// Its memory is that of its workers alone: the memory of one launcher is in the batch job's share
// already.
std::optional<Share> ShareIn(const ScheduleJob& step, const v1::Part& allocation) {
  ScheduleNode node;
  node.cpus = allocation.cpus();
  node.gpus = allocation.gpus();
  std::optional<Share> share = ShareOf(step, node);
  if (share.has_value()) {
    const uint64_t memory = rpc::JobMemory(step.resources.memory_per_worker(), share->workers);
    share->memory = memory - std::min(memory, rpc::kLauncherMemory);
  }
  const bool fits = share.has_value() && Fits(*share, RoomOf(allocation), allocation.memory() != 0);
  return fits ? share : std::nullopt;
}

}  // namespace

const state::Job* BatchJobOf(const state::Job& step, const state::State& state) {
  const auto name = state.by_id.find(step.saved.submission().step_of());
  return name == state.by_id.end() ? nullptr : FindJob(state, name->second);
}

bool IsWithin(const v1::Part& allocation, const state::State& state) {
  return allocation.within() != 0 && state.cluster.allocations.count(allocation.within()) != 0;
}

std::string WhyStepIsOver(const state::Job& step, const state::State& state) {
  const state::Job* batch = BatchJobOf(step, state);
  if (IsOver(batch)) return "its batch job has ended";
  if (batch->phase() == v1::STOPPING) return "its batch job is being stopped";
  const saved::JobTimes& times = batch->saved.times();
  const bool began_again = batch->saved.restarts().all() > 0 &&
                           step.saved.times().submitted_us() <= times.gathering_us();
  return began_again ? "its batch job begins again" : "";
}

absl::Status CheckStep(const v1::JobSpec& spec, absl::string_view user, absl::string_view within,
                       const state::State& state) {
  uint64_t id = 0;
  const auto name = absl::SimpleAtoi(within, &id) ? state.by_id.find(id) : state.by_id.end();
  const state::Job* batch = name == state.by_id.end() ? nullptr : FindJob(state, name->second);
  if (batch == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no job ",
                                            OneLine(within, state::kMaxJobNameBytes),
                                            " in which a step could run"));
  }
  if (batch->user() != user) {
    return absl::PermissionDeniedError(absl::StrCat("job ", id, " is ", batch->user(), "'s, not ",
                                                    user, "'s, and only its owner begins steps"));
  }
  if (!batch->saved.spec().has_batch()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id, " is no batch job; steps run only in jobs of batch scripts"));
  }
  const char* why_not = state::HasEnded(batch->phase())  ? " has ended"
                        : batch->phase() == v1::STOPPING ? " is being stopped"
                        : batch->phase() == v1::QUEUED   ? " waits for its nodes"
                                                         : nullptr;
  if (why_not != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id, why_not, ", and no step can run in it"));
  }
  if (spec.has_batch()) return absl::InvalidArgumentError("a step cannot be a batch script");
  if (spec.workers_per_node().kind() != v1::WorkersPerNode::COUNT) {
    return absl::InvalidArgumentError("a step needs a number of workers per node");
  }
  const uint32_t has = std::max(batch->saved.spec().nodes().max(), 1u);
  if (spec.nodes().min() != spec.nodes().max() || spec.nodes().max() > has) {
    return absl::InvalidArgumentError(
        absl::StrCat("the step asks for ", Count(spec.nodes().max(), "node"), "; job ", id, " has ",
                     Count(has, "node"), ": ask for fewer, or submit a job with more"));
  }
  return absl::OkStatus();
}

StepPlacement PlaceStep(const state::Job& step, const state::State& state, const Agents& agents,
                        const std::set<std::string>& backed_off) {
  StepPlacement placement;
  const state::Job* batch = BatchJobOf(step, state);
  // A step of a job that has ended is about to be cancelled.
  if (IsOver(batch)) return placement;
  std::set<std::string> held;
  for (const auto& [id, allocation] : state.cluster.allocations) {
    if (!allocation.taken_back() && allocation.part().job() == step.name()) {
      held.insert(allocation.part().node());
    }
  }
  const v1::JobSpec& spec = step.saved.spec();
  if (held.size() >= spec.nodes().max()) return placement;
  const size_t lacks = spec.nodes().max() - held.size();
  ScheduleJob job;
  job.workers = spec.workers_per_node();
  job.resources = spec.resources();
  const auto& asked = spec.slurm_step().nodes();
  const std::vector<BatchAllocation> allocations = AllocationsOf(*batch, state);
  size_t large_enough = 0;
  for (const BatchAllocation& one : allocations) {
    const std::string& node = one.part.node();
    if (!asked.empty() && std::find(asked.begin(), asked.end(), node) == asked.end()) continue;
    const auto& avoided = step.saved.submission().avoided();
    const bool unfit = std::any_of(avoided.begin(), avoided.end(), [&](const auto& avoid) {
      return avoid.unfit() && avoid.node() == node;
    });
    const std::optional<Share> share = ShareIn(job, one.part);
    if (unfit || !share.has_value()) continue;
    ++large_enough;
    const Room room = spec.slurm_step().overlap() ? RoomOf(one.part) : one.free;
    if (held.count(node) != 0 || backed_off.count(node) != 0 || !agents.IsConnected(node) ||
        placement.place.size() == lacks || !Fits(*share, room, one.part.memory() != 0)) {
      continue;
    }
    placement.place.push_back({one.part.id(), node, *share});
  }
  if (placement.place.size() == lacks) return placement;
  placement.place.clear();
  const uint64_t id = batch->id();
  const bool is_complete = allocations.size() >= std::max(batch->saved.spec().nodes().min(), 1u);
  if (large_enough < spec.nodes().max() && is_complete) {
    placement.impossible =
        absl::StrCat("job ", id, " has ", Count(large_enough, "node"),
                     asked.empty() ? "" : " of those asked for",
                     " that this step could use, and it needs ", spec.nodes().max());
  } else {
    placement.waits_for =
        absl::StrCat(Count(lacks, "node"), " of job ", id, ": other steps use them");
    if (!is_complete) placement.waits_for = absl::StrCat("the nodes of job ", id);
  }
  return placement;
}

absl::Status CheckStepAllocations(const state::State& state) {
  const auto wrong = [](uint64_t id, const char* what) {
    return absl::InternalError(absl::StrCat("allocation ", id, " ", what));
  };
  std::map<uint64_t, Room> left;
  std::set<std::string> scripts;
  for (const auto& [id, allocation] : state.cluster.allocations) {
    const v1::Part& part = allocation.part();
    const state::Job* job = FindJob(state, part.job());
    if (job == nullptr) continue;
    if (IsStep(*job) != (part.within() != 0)) return wrong(id, "and its job disagree");
    if (job->saved.spec().has_batch() && !part.holds() && !allocation.taken_back() &&
        !scripts.insert(part.job()).second) {
      return wrong(id, "runs the script of its job once more");
    }
    const auto batch = state.cluster.allocations.find(part.within());
    if (batch == state.cluster.allocations.end()) continue;
    const v1::Part& all = batch->second.part();
    const state::Job* owner = FindJob(state, all.job());
    if (all.node() != part.node() || all.within() != 0 ||
        (owner != nullptr && owner->id() != job->saved.submission().step_of())) {
      return wrong(id, "is no share of its batch job's");
    }
    if (job->saved.spec().slurm_step().overlap()) continue;
    Room& room = left.emplace(all.id(), RoomOf(all)).first->second;
    Take(part, &room);
    if (room.cpus < 0 || room.gpus < 0 || (all.memory() != 0 && room.memory < 0)) {
      return wrong(id, "is more than other steps leave");
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre::cluster
