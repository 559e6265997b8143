// The variables in which mpirun tells a process about itself, and the nodes that the ranks of one
// mpirun make out together. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_MPI_ENVIRONMENT_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_MPI_ENVIRONMENT_H_

#include <string>
#include <vector>

#include "cadre/result.h"
#include "worker_runtime/environment/worker_environment.h"

namespace cadre::environment {

// Of one mpirun: rank 0 has a thread for each call that waits in its store.
constexpr int kMaxMpiRanks = 1024;

struct MpiEnvironment {
  // Tells this mpirun from all others, the same for all its processes; fit for a file's name.
  std::string launch;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  // Of this node as others reach it; loopback where there is no other.
  std::string address = "127.0.0.1";

  bool one_node() const { return local_world_size == world_size; }
};

// Open MPI's mpirun started this process.
bool StartedByMpi(const GetVariable& get);

// Where StartedByMpi. FAILED_PRECONDITION: a variable is missing, or more than kMaxMpiRanks;
// INVALID_ARGUMENT: they make no sense. Both say what to do.
Result<MpiEnvironment> ReadMpiEnvironment(const GetVariable& get);

// A rank's place on its node.
struct MpiSeat {
  int local_rank = 0;
  int local_world_size = 0;
};

struct MpiNode {
  int node_rank = 0;
  int nodes = 0;
};

// The node of `rank`, where the ranks of each node follow each other. INVALID_ARGUMENT: they do
// not.
Result<MpiNode> FindMpiNode(const std::vector<MpiSeat>& seats, int rank);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_MPI_ENVIRONMENT_H_
