// What the ranks of a launch without Cadre's agent know before they have met, whoever started them.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_LAUNCH_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_LAUNCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace cadre::environment {

// Of one launch: rank 0 serves all others, each on a connection of its own.
inline constexpr int kMaxLaunchedRanks = 1024;

// How the others find the store that rank 0 serves.
//
// A file of this user's, where only this user can read it: in a directory of the machine, or, where
// there are several nodes, of the home that they share.
struct ThroughFile {
  std::string name;
  // Of this node as others reach it; loopback where there is no other.
  std::string address = "127.0.0.1";
};
// Rank 0 listens there.
struct AtAddress {
  std::string host;
  uint16_t port = 0;
};
// torchrun serves a store of PyTorch's there; rank 0 says under this key of it where its own is.
struct ThroughTorchrun {
  std::string host;
  uint16_t port = 0;
  std::string key;
};

struct Launch {
  // Who started this process, for errors: "mpirun", "torchrun", "srun"; else who set the variables.
  std::string launcher;
  // Tells this launch from others; the job's name.
  std::string name;
  int rank = 0;
  int world_size = 1;
  // nullopt: not known.
  std::optional<int> local_rank, local_world_size;
  std::optional<bool> one_node;
  int restart_count = 0;
  std::variant<ThroughFile, AtAddress, ThroughTorchrun> meeting;
};

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_LAUNCH_H_
