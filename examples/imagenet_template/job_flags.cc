#include "job_flags.h"

#include <cstdlib>

namespace cadre::imagenet {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The template's users give the address of a meeting place, which here the launcher has made.
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
  // An interactive shell under Slurm is a step of one task.
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

}  // namespace cadre::imagenet
