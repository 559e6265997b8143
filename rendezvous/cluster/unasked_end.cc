// Methods of Cluster: what follows when a launcher ends that was not to.
#include <string>

#include "absl/strings/str_cat.h"
#include "rendezvous/cluster/cluster.h"
#include "rendezvous/cluster/parts.h"

namespace cadre::cluster {
namespace {

// A job that has never begun is tried so often: when it ends before it begins on so many nodes, it
// is hardly all of them.
constexpr uint32_t kFailedStartsMax = 8;

}  // namespace

void Cluster::PartEndedUnasked(const saved::PlacedPart& part, const std::string& how,
                               v1::PartBlame blame) {
  const std::string& name = part.part().job();
  const std::string& node = part.part().node();
  v1::AvoidedNode avoid;
  avoid.set_node(node);
  avoid.set_reason(how);
  avoid.set_unfit(!part.joined() && blame == v1::BLAME_NODE);
  EndPart(part, &avoid);
  const std::string text =
      absl::StrCat(part.joined() ? "its part on node " : "it could not begin on node ", node,
                   part.joined() ? " ended unasked: " : ": ", how);
  out_.Note(name, text);
  for_jobs_.push_back(LauncherEnded{name, node, absl::StrCat("its launcher ended: ", how)});
  const state::Job& job = *FindJob(context_.state, name);
  const uint32_t failed_starts = job.saved.submission().failed_starts();
  if (!part.joined() && blame == v1::BLAME_NOBODY) {
    rests_.Add(job.saved.submission().order(), node, failed_starts, context_.clock.lease_now());
  }
  if (job.saved.generations() > 0) return;
  if (blame == v1::BLAME_JOB) {
    for_jobs_.push_back(CannotBegin{name, text, false});
  } else if (failed_starts >= kFailedStartsMax) {
    for_jobs_.push_back(CannotBegin{
        name, absl::StrCat("it was tried ", failed_starts, " times: ", NodesTried(job)), true});
  }
}

}  // namespace cadre::cluster
