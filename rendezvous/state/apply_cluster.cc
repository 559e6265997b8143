#include "rendezvous/state/apply_cluster.h"

#include <algorithm>

#include "rendezvous/state/snapshot.h"

namespace cadre {
namespace {

void PlacePart(const v1::PartPlaced& record, State* state) {
  ClusterState& cluster = state->cluster;
  cluster.parts[record.part().id()].part = record.part();
  cluster.last_part = std::max<uint64_t>(cluster.last_part, record.part().id());
  const auto job = state->jobs.find(record.part().job());
  if (job == state->jobs.end() || job->second.phase != v1::QUEUED) return;
  job->second.phase = v1::GATHERING;
  // Its time in the queue counts against none of its limits.
  job->second.created_us = job->second.gathering_us = job->second.last_join_us = record.at_us();
}

void EndPart(const v1::PartEnded& record, State* state) {
  std::map<uint64_t, PartState>& parts = state->cluster.parts;
  const auto found = parts.find(record.id());
  if (found == parts.end()) return;
  const PartState part = found->second;
  parts.erase(found);
  const auto known = state->jobs.find(part.part.job());
  if (known == state->jobs.end()) return;
  JobState& job = known->second;
  if (record.avoid()) {
    v1::AvoidedNode& avoided = job.avoid[part.part.node()];
    avoided.set_node(part.part.node());
    avoided.set_reason(record.reason());
    avoided.set_unfit(avoided.unfit() || record.unfit());
    job.failed_starts += !part.joined;
  }
  if (job.phase != v1::GATHERING || job.generations_announced > 0) return;
  const bool last = std::none_of(parts.begin(), parts.end(), [&](const auto& other) {
    return other.second.part.job() == part.part.job();
  });
  // It has never begun, and waits for nodes as before, for as long as it takes.
  if (last) job.phase = v1::QUEUED;
}

}  // namespace

bool ApplyToCluster(const v1::Record& record, State* state) {
  ClusterState& cluster = state->cluster;
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
      if (found != cluster.parts.end()) found->second.taken_back = true;
      return true;
    }
    case v1::Record::kPartEnded:
      EndPart(record.part_ended(), state);
      return true;
    case v1::Record::kClusterRestored:
      RestoreCluster(record.cluster_restored(), &cluster);
      return true;
    default:
      return false;
  }
}

void NoteJoined(uint64_t part, ClusterState* cluster) {
  const auto found = cluster->parts.find(part);
  if (found != cluster->parts.end()) found->second.joined = true;
}

}  // namespace cadre
