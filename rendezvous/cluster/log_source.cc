#include "rendezvous/cluster/log_source.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log_paths.h"
#include "base/text.h"
#include "rendezvous/state/policy.h"

namespace cadre::cluster {
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
  // An agent of root would not know whose rights to read with.
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
  // Ranks are sticky, so that an earlier generation's are mostly found as well.
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
  source.read.set_job(found->first);
  source.read.set_user(job.user());
  source.read.set_dir(job.saved.spec().logs().dir());
  source.read.set_generation(request.generation());
  source.read.set_rank(rank);
  source.read.set_run(job.saved.run());
  const auto& parts = state.cluster.parts;
  source.ended =
      state::HasEnded(job.phase()) &&
      std::none_of(parts.begin(), parts.end(), [&](const auto& part) {
        return part.second.part().job() == found->first && part.second.part().node() == node;
      });
  return source;
}

}  // namespace cadre::cluster
