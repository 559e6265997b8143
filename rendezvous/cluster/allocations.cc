#include "rendezvous/cluster/allocations.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "rendezvous/cluster/steps.h"
#include "rendezvous/state/policy.h"
#include "rpc/versions.h"

namespace cadre::cluster {
namespace {

constexpr size_t kMaxTriedTextBytes = 160;

// Returns "a process of job j outlives SIGKILL: ...".
std::string UnkillableText(const state::State& state, uint64_t allocation,
                           const std::string& text) {
  const auto found = state.cluster.allocations.find(allocation);
  return absl::StrCat("a process of ",
                      found == state.cluster.allocations.end()
                          ? "an earlier job"
                          : absl::StrCat("job ", found->second.part().job()),
                      " ", text);
}

}  // namespace

const state::Job* FindJob(const state::State& state, const std::string& name) {
  const auto found = state.jobs.find(name);
  return found == state.jobs.end() ? nullptr : &found->second;
}

bool IsOver(const state::Job* job) { return job == nullptr || state::HasEnded(job->phase()); }

bool IsUnstarted(const state::Job& job) {
  return job.phase() == v1::GATHERING && job.saved.generations() == 0;
}

std::vector<saved::PlacedPart> AllocationsOn(const state::State& state, const std::string& node) {
  std::vector<saved::PlacedPart> allocations;
  for (const auto& [id, allocation] : state.cluster.allocations) {
    if (allocation.part().node() == node) allocations.push_back(allocation);
  }
  return allocations;
}

bool IsLastAllocation(const state::State& state, const v1::Part& allocation) {
  const auto& allocations = state.cluster.allocations;
  return std::none_of(allocations.begin(), allocations.end(), [&](const auto& other) {
    return other.first != allocation.id() && other.second.part().job() == allocation.job();
  });
}

bool RunsScript(const state::State& state, const state::Job& job) {
  const auto& allocations = state.cluster.allocations;
  return std::any_of(allocations.begin(), allocations.end(), [&](const auto& one) {
    return one.second.part().job() == job.name() && !one.second.taken_back() &&
           !one.second.part().holds();
  });
}

std::string LaunchersAwaited(const state::State& state, const state::Job& job) {
  std::vector<std::string> nodes;
  for (const auto& [id, allocation] : state.cluster.allocations) {
    if (allocation.taken_back() || allocation.part().holds() ||
        allocation.part().job() != job.name()) {
      continue;
    }
    if (job.nodes.count(allocation.part().node()) == 0) nodes.push_back(allocation.part().node());
  }
  if (nodes.empty()) return "";
  return absl::StrCat(nodes.size() == 1 ? "its launcher on " : "its launchers on ",
                      FirstFew(nodes, nodes.size()), " to begin");
}

std::string NodesTried(const state::Job& job) {
  std::vector<std::string> tried;
  for (const v1::AvoidedNode& avoided : job.saved.submission().avoided()) {
    tried.push_back(
        absl::StrCat(avoided.node(), " (", Shortened(avoided.reason(), kMaxTriedTextBytes), ")"));
  }
  return FirstFew(tried, tried.size());
}

std::string UnkillableProcesses(const state::State& state, const Agents& agents) {
  std::vector<std::string> texts;
  for (const auto& [node, allocations] : agents.unkillable()) {
    for (const auto& [allocation, text] : allocations) {
      texts.push_back(absl::StrCat("on ", node, " ", UnkillableText(state, allocation, text)));
    }
  }
  return FirstFew(texts, texts.size());
}

std::vector<v1::ClusterNodeStatus> NodeStatuses(const state::State& state, const Agents& agents) {
  std::map<std::string, std::vector<v1::Part>> allocations;
  for (const auto& [id, allocation] : state.cluster.allocations) {
    // What a step uses is in its batch job's share already.
    if (IsWithin(allocation.part(), state)) continue;
    allocations[allocation.part().node()].push_back(allocation.part());
  }
  std::vector<v1::ClusterNodeStatus> all;
  for (const auto& [name, node] : state.cluster.nodes) {
    v1::ClusterNodeStatus& status = all.emplace_back();
    status.set_name(name);
    status.set_user(node.user());
    status.set_cpus(node.cpus());
    status.set_gpus(node.gpus());
    status.set_memory(node.memory());
    *status.mutable_labels() = node.labels();
    status.set_drained(node.drained());
    status.set_drain_reason(node.drain_reason());
    status.set_connected(agents.IsConnected(name));
    const Agent* agent = agents.Find(name);
    if (agent != nullptr) status.set_leftovers(agent->leftovers.size());
    status.set_closing(agent != nullptr && agent->closing);
    if (status.connected()) status.set_version(rpc::OtherVersionText(agent->version));
    for (v1::Part& allocation : allocations[name]) *status.add_parts() = std::move(allocation);
    const auto remains = agents.unkillable().find(name);
    if (remains == agents.unkillable().end()) continue;
    for (const auto& [allocation, text] : remains->second) {
      status.add_remains(UnkillableText(state, allocation, text));
    }
  }
  return all;
}

namespace {

std::string NodesText(const state::Generation& generation) {
  const auto& members = generation.saved.members();
  if (members.empty()) return "its nodes";
  std::vector<std::string> first;
  for (const saved::Member& member : members) {
    if (first.size() < kFirstFew) first.push_back(member.node());
  }
  return absl::StrCat(members.size() == 1 ? "node " : "nodes ", FirstFew(first, members.size()));
}

}  // namespace

absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request, const state::State& state,
                                  const Agents& agents) {
  const std::string name = OneLine(request.job(), state::kMaxJobNameBytes);
  const uint32_t rank = request.rank();
  const auto found = state.jobs.find(request.job());
  if (found == state.jobs.end()) return absl::FailedPreconditionError("no job " + name);
  const state::Job& job = found->second;
  // An agent of root would not know with which user's rights to read.
  if (job.user().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " was started by 'cadre run', not submitted to the cluster: ",
        "its logs are on ", NodesText(job.generation), ", in ", job.saved.spec().logs().dir(), "/",
        RunSubdirectory(name, job.saved.run()), "/", GenerationSubdirectory(request.generation())));
  }
  if (!request.run().empty() && request.run() != job.saved.run()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " was submitted again; what it wrote before is on its nodes, in ",
        job.saved.spec().logs().dir()));
  }
  const state::Generation& generation = job.generation;
  // Ranks are sticky, so a rank of an earlier generation is mostly found too.
  if (rank >= generation.world_size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, " has no rank ", rank, "; it has ",
                     Count(generation.world_size(), "worker"), " so far"));
  }
  const std::string& node = generation.member_of(rank).node();
  const Agent* agent = agents.Find(node);
  if (agent == nullptr || !agent->stream.has_value()) {
    return absl::UnavailableError(absl::StrCat("rank ", rank, " is on node ", node,
                                               ", which has no agent now; its logs are there in ",
                                               job.saved.spec().logs().dir()));
  }
  LogSource source;
  source.stream = *agent->stream;
  // The directory has the name that the job ran under.
  source.read.set_job(state::HasEnded(job.phase()) ? job.saved.verdict().job() : found->first);
  source.read.set_user(job.user());
  source.read.set_dir(job.saved.spec().logs().dir());
  source.read.set_generation(request.generation());
  source.read.set_rank(rank);
  source.read.set_run(job.saved.run());
  const auto& allocations = state.cluster.allocations;
  source.ended = state::HasEnded(job.phase()) &&
                 std::none_of(allocations.begin(), allocations.end(), [&](const auto& allocation) {
                   return allocation.second.part().job() == found->first &&
                          allocation.second.part().node() == node;
                 });
  return source;
}

}  // namespace cadre::cluster
