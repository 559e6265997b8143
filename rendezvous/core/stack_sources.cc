#include "rendezvous/core/stack_sources.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/state/limits.h"
#include "rpc/job_phase.h"
#include "rpc/versions.h"

namespace cadre {
namespace {

StackSources::Node SourceOf(const saved::Member& member, const job::Connection* connection) {
  if (connection == nullptr || !connection->stream.has_value()) {
    return {member, std::nullopt, member.lost() ? "was lost" : "is not connected now"};
  }
  if (rpc::IsSince(connection->version, rpc::kStacksSince)) return {member, connection->stream, ""};
  return {member, std::nullopt,
          absl::StrCat("is of Cadre ", rpc::VersionText(connection->version),
                       ", which cannot say: upgrade it")};
}

}  // namespace

absl::StatusOr<StackSources> FindStacks(const v1::GetStacksRequest& request,
                                        const state::State& state, const job::Jobs& jobs) {
  const std::string name = OneLine(request.job(), state::kMaxJobNameBytes);
  const auto found = state.jobs.find(request.job());
  const job::Job* job = jobs.Find(request.job());
  if (found == state.jobs.end() || job == nullptr) {
    return absl::NotFoundError(absl::StrCat("no job ", name));
  }
  const state::Job& saved = found->second;
  if (saved.phase() != v1::RUNNING && saved.phase() != v1::STOPPING) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, state::HasEnded(saved.phase()) ? " has ended (" : " is ",
                     rpc::PhaseName(saved.phase()), state::HasEnded(saved.phase()) ? ")" : "",
                     ": none of its workers runs; 'cadre why ", name, "' says more"));
  }
  const state::Generation& generation = saved.generation;
  const v1::StackQuestion& question = request.question();
  if (question.one_rank() && question.rank() >= generation.world_size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, " has no rank ", question.rank(), "; generation ",
                     generation.number(), " has ", Count(generation.world_size(), "worker")));
  }
  StackSources sources;
  sources.job = found->first;
  sources.generation = generation.number();
  sources.world_size = generation.world_size();
  for (const saved::Member& member : generation.saved.members()) {
    const uint32_t first = member.first_rank();
    if (question.one_rank() &&
        (question.rank() < first || question.rank() >= first + member.slots())) {
      continue;
    }
    sources.nodes.push_back(SourceOf(member, job->view().live.connections.Find(member.node())));
  }
  return sources;
}

}  // namespace cadre
