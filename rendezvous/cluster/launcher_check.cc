#include "rendezvous/cluster/launcher_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "proto/state.pb.h"
#include "rendezvous/cluster/allocations.h"
#include "rendezvous/state/policy.h"

namespace cadre::cluster {

absl::Status CheckLauncher(const state::State& state, const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  const std::string& name = message.job();
  const state::Job* job = FindJob(state, name);
  const bool over = IsOver(job);
  if (join.part() == 0) {
    // An ended job keeps its name for its user.
    if (job == nullptr || job->user().empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " was submitted to the cluster by ", job->user(),
        over ? "" : ", and the cluster chooses its nodes", "; give this one another name"));
  }
  const auto allocation = state.cluster.allocations.find(join.part());
  const bool its = allocation != state.cluster.allocations.end() &&
                   allocation->second.part().job() == name &&
                   allocation->second.part().node() == join.node();
  const saved::Node* node = nullptr;
  if (job != nullptr && job->nodes.count(join.node()) != 0) {
    node = &job->nodes.at(join.node()).node();
  }
  if (!over && its && (!allocation->second.taken_back() || node != nullptr))
    return absl::OkStatus();
  // A launcher that was disconnected learns how its job ended, even if its allocation no longer
  // counts.
  const bool was_in_it = node != nullptr && node->incarnation() == message.incarnation();
  const bool returns = was_in_it || (its && message.generation() != 0);
  if (job != nullptr && over && returns) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("job ", OneLine(name, state::kMaxJobNameBytes),
                                                    " has no part ", join.part(), " on node ",
                                                    join.node()));
}

}  // namespace cadre::cluster
