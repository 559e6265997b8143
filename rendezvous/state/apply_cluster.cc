#include "rendezvous/state/apply_cluster.h"

#include <algorithm>
#include <string>

namespace cadre::state {
namespace {

// Null: no such job.
Job* FindJob(const std::string& name, State* state) {
  const auto found = state->jobs.find(name);
  return found == state->jobs.end() ? nullptr : &found->second;
}

void PlacePart(const v1::PartPlaced& record, State* state) {
  saved::PlacedPart& placed = state->cluster.parts[record.part().id()];
  *placed.mutable_part() = record.part();
  state->counters.set_last_part(std::max(state->counters.last_part(), record.part().id()));
  Job* job = FindJob(record.part().job(), state);
  if (job == nullptr || !record.leaves_queue()) return;
  job->saved.set_phase(v1::GATHERING);
  saved::JobTimes* times = job->saved.mutable_times();
  times->set_created_us(record.at_us());
  times->set_gathering_us(record.at_us());
  times->set_last_join_us(record.at_us());
}

// By name.
v1::AvoidedNode* AvoidedNode(const std::string& node, saved::Submission* submission) {
  auto* avoided = submission->mutable_avoided();
  const auto at = std::lower_bound(
      avoided->begin(), avoided->end(), node,
      [](const v1::AvoidedNode& one, const std::string& name) { return one.node() < name; });
  if (at != avoided->end() && at->node() == node) return &*at;
  const int index = static_cast<int>(at - avoided->begin());
  avoided->Add()->set_node(node);
  std::rotate(avoided->begin() + index, avoided->end() - 1, avoided->end());
  return avoided->Mutable(index);
}

void Avoid(const v1::AvoidedNode& avoid, bool joined, saved::Submission* submission) {
  v1::AvoidedNode* avoided = AvoidedNode(avoid.node(), submission);
  avoided->set_reason(avoid.reason());
  avoided->set_unfit(avoided->unfit() || avoid.unfit());
  if (!joined) submission->set_failed_starts(submission->failed_starts() + 1);
}

void EndPart(const v1::PartEnded& record, State* state) {
  const auto found = state->cluster.parts.find(record.id());
  if (found == state->cluster.parts.end()) return;
  const saved::PlacedPart part = found->second;
  state->cluster.parts.erase(found);
  Job* job = FindJob(part.part().job(), state);
  if (job == nullptr) return;
  if (record.has_avoid()) Avoid(record.avoid(), part.joined(), job->saved.mutable_submission());
  if (record.back_to_queue()) job->saved.set_phase(v1::QUEUED);
}

}  // namespace

bool ApplyToCluster(const v1::Record& record, State* state) {
  Cluster& cluster = state->cluster;
  switch (record.body_case()) {
    case v1::Record::kClusterNodeSet:
      cluster.nodes[record.cluster_node_set().node().name()] = record.cluster_node_set().node();
      return true;
    case v1::Record::kClusterNodeGone:
      cluster.nodes.erase(record.cluster_node_gone().node());
      return true;
    case v1::Record::kPartPlaced:
      PlacePart(record.part_placed(), state);
      return true;
    case v1::Record::kPartTakenBack: {
      const auto found = cluster.parts.find(record.part_taken_back().id());
      if (found != cluster.parts.end()) found->second.set_taken_back(true);
      return true;
    }
    case v1::Record::kPartEnded:
      EndPart(record.part_ended(), state);
      return true;
    default:
      return false;
  }
}

void MarkJoined(uint64_t part, Cluster* cluster) {
  const auto found = cluster->parts.find(part);
  if (found != cluster->parts.end()) found->second.set_joined(true);
}

}  // namespace cadre::state
