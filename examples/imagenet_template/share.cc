#include "examples/imagenet_template/share.h"

#include "absl/strings/str_cat.h"

namespace cadre::imagenet {

absl::StatusOr<Share> ShareOf(const JobSize& job, int node_rank, int device) {
  if (job.nodes < 1 || job.devices_per_node < 1) {
    return absl::InvalidArgumentError(absl::StrCat(job.nodes, " nodes with ", job.devices_per_node,
                                                   " devices each; expected at least one"));
  }
  if (node_rank < 0 || node_rank >= job.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("node rank ", node_rank, "; expected 0 to ", job.nodes - 1));
  }
  if (device < 0 || device >= job.devices_per_node) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", device, "; expected 0 to ", job.devices_per_node - 1));
  }
  if (job.data_workers < 0) {
    return absl::InvalidArgumentError(absl::StrCat(job.data_workers, " data workers"));
  }
  Share share;
  share.world_size = job.nodes * job.devices_per_node;
  share.rank = node_rank * job.devices_per_node + device;
  share.batch_size = job.batch_size / job.devices_per_node;
  share.data_workers = (job.data_workers + job.devices_per_node - 1) / job.devices_per_node;
  if (share.batch_size < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", job.batch_size, " on ", job.devices_per_node,
                     " devices; batch normalization needs two pictures on each"));
  }
  return share;
}

}  // namespace cadre::imagenet
