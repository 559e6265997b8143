#include "job_flags.h"

#include <cstdlib>

namespace cadre::imagenet {
namespace {

constexpr char kTcp[] = "tcp://";

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Status CheckUrl(const std::string& url, const std::string& master) {
  if (url == "env://") return OkStatus();
  if (url.rfind(kTcp, 0) != 0 || url.size() == sizeof(kTcp) - 1) {
    return InvalidArgumentError("--dist-url " + url + ": expected env:// or tcp://HOST:PORT");
  }
  if (master.empty() || url == kTcp + master) return OkStatus();
  return InvalidArgumentError("--dist-url " + url + ": the launcher has chosen tcp://" + master +
                              "; leave the flag out");
}

}  // namespace

bool HasLauncher() {
  for (const char* name : {"CADRE_AGENT", "CADRE_STANDS_BY", "RANK", "OMPI_COMM_WORLD_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  // An interactive shell under Slurm is a step of one task.
  return !Variable("SLURM_PROCID").empty() && std::atoi(Variable("SLURM_NTASKS").c_str()) > 1;
}

std::string Master() {
  const std::string address = Variable("MASTER_ADDR"), port = Variable("MASTER_PORT");
  return address.empty() || port.empty() ? "" : address + ":" + port;
}

Status CheckJobFlags(const JobFlags& flags, const WorkerPlace& place, const std::string& master) {
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
  return CheckUrl(flags.dist_url, master);
}

}  // namespace cadre::imagenet
