#include "job_flags.h"

#include <cstdlib>
#include <string>

#include "share.h"

namespace cadre::imagenet {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The template's users give the address of a rendezvous, which the launcher has set up here.
Status CheckUrl(const std::string& url) {
  if (url == "env://" || url.rfind("tcp://", 0) == 0 || url.rfind("file://", 0) == 0) {
    return OkStatus();
  }
  return InvalidArgumentError("--dist-url " + url +
                              ": expected env://, tcp://HOST:PORT or file:///PATH");
}

}  // namespace

bool HasLauncher() {
  for (const char* name : {"CADRE_AGENT", "CADRE_STANDS_BY", "RANK", "OMPI_COMM_WORLD_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  // An interactive shell under Slurm is a step of one task and does not count as a launcher.
  return !Variable("SLURM_PROCID").empty() && std::atoi(Variable("SLURM_NTASKS").c_str()) > 1;
}

Status CheckJobFlags(const JobFlags& flags, const WorkerPlace& place) {
  if (flags.nodes > 0 && flags.nodes != place.nodes) {
    return InvalidArgumentError(
        "--world-size " + std::to_string(flags.nodes) + " is given in nodes, and the job has " +
        std::to_string(place.nodes) + "; cadre run --nnodes says how many there are");
  }
  if (flags.node_rank >= 0 && flags.node_rank != place.node_rank) {
    return InvalidArgumentError("--rank " + std::to_string(flags.node_rank) +
                                " is that of a node, and this is node " +
                                std::to_string(place.node_rank) + "; leave the flag out");
  }
  if (flags.gpu >= 0 && place.local_world_size > 1 && flags.gpu != place.local_rank) {
    return InvalidArgumentError("--gpu " + std::to_string(flags.gpu) + ": this node has " +
                                std::to_string(place.local_world_size) +
                                " processes, and this one has GPU " +
                                std::to_string(place.local_rank) + "; leave the flag out");
  }
  return CheckUrl(flags.dist_url);
}

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
    return InvalidArgumentError(std::to_string(job.data_workers) +
                                " data workers; expected 0 or more");
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
