#include "share.h"

#include <string>

namespace cadre::imagenet {

Result<Share> ShareOf(const JobSize& job, int node_rank, int device) {
  if (job.nodes < 1 || job.devices_per_node < 1) {
    return InvalidArgumentError(std::to_string(job.nodes) + " nodes with " +
                                std::to_string(job.devices_per_node) +
                                " devices each; expected at least one");
  }
  if (node_rank < 0 || node_rank >= job.nodes) {
    return InvalidArgumentError("node rank " + std::to_string(node_rank) + "; expected 0 to " +
                                std::to_string(job.nodes - 1));
  }
  if (device < 0 || device >= job.devices_per_node) {
    return InvalidArgumentError("device " + std::to_string(device) + "; expected 0 to " +
                                std::to_string(job.devices_per_node - 1));
  }
  if (job.data_workers < 0) {
    return InvalidArgumentError(std::to_string(job.data_workers) + " data workers");
  }
  Share share;
  share.world_size = job.nodes * job.devices_per_node;
  share.rank = node_rank * job.devices_per_node + device;
  share.batch_size = job.batch_size / job.devices_per_node;
  share.data_workers = (job.data_workers + job.devices_per_node - 1) / job.devices_per_node;
  if (share.batch_size < 2) {
    return InvalidArgumentError("a batch of " + std::to_string(job.batch_size) + " on " +
                                std::to_string(job.devices_per_node) +
                                " devices; batch normalization needs two pictures on each");
  }
  return share;
}

std::vector<int64_t> EvaluationPart(int64_t size, const Share& share) {
  std::vector<int64_t> part;
  for (int64_t i = share.rank; i < size; i += share.world_size) part.push_back(i);
  return part;
}

}  // namespace cadre::imagenet
