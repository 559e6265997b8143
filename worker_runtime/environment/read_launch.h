// How a launcher other than Cadre (mpirun, torchrun, srun, a script) started this process, and what
// each of its ranks knows from the environment before it connects to the others. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_READ_LAUNCH_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_READ_LAUNCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "cadre/result.h"
#include "worker_runtime/environment/worker_environment.h"

namespace cadre::environment {

// The most ranks of one launch: rank 0 serves all others, each on a separate connection.
inline constexpr int kMaxLaunchedRanks = 1024;

// How the other ranks find the store that rank 0 serves.
//
// A file that only this user can read: in a directory of the machine or, if there are several
// nodes, of the home directory that they share.
struct ThroughFile {
  std::string name;
  // This node's address for other nodes; loopback if there are none.
  std::string address = "127.0.0.1";
};
// Rank 0 listens at this address.
struct AtAddress {
  std::string host;
  uint16_t port = 0;
};
// torchrun serves a PyTorch store at this address; rank 0 publishes its own store's address there
// under `key`.
struct ThroughTorchrun {
  std::string host;
  uint16_t port = 0;
  std::string key;
};

struct Launch {
  // The launcher that started this process, for errors: "mpirun", "torchrun", "srun"; otherwise
  // what set the variables.
  std::string launcher;
  // Distinguishes this launch from others; used as the job's name.
  std::string name;
  int rank = 0;
  int world_size = 1;
  // nullopt if not known.
  std::optional<int> local_rank, local_world_size;
  std::optional<bool> one_node;
  int restart_count = 0;
  std::variant<ThroughFile, AtAddress, ThroughTorchrun> meeting;
};

// Whether Open MPI's mpirun started this process.
bool StartedByMpi(const GetVariable& get);

// Requires StartedByMpi(). FAILED_PRECONDITION: a variable is missing. INVALID_ARGUMENT: the
// variables are invalid. Both messages say what to do.
Result<Launch> ReadMpiEnvironment(const GetVariable& get);

// Whether TORCHELASTIC_RUN_ID is set.
bool StartedByTorchrun(const GetVariable& get);

// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as set by
// torchrun, a script or the user; in a Slurm job step missing ones are taken from Slurm's
// variables. nullopt: neither these variables nor Slurm's are set. FAILED_PRECONDITION, naming
// them: some are missing. INVALID_ARGUMENT, naming them: a variable is not a number, or two
// contradict each other.
Result<std::optional<Launch>> ReadPlainEnvironment(const GetVariable& get);

// The variables that Slurm sets for a task of a job step (srun).
struct SlurmStep {
  std::string name;  // "slurm-17.0"
  int rank = 0;
  int tasks = 1;
  // The variable that holds the number of tasks.
  const char* tasks_variable = "SLURM_NTASKS";
  std::optional<int> local_rank;
  int nodes = 1;
  std::string first_host;  // loopback if the step has one node
  // A port for this step, by the convention of Slurm scripts: 15000 plus the last four digits of
  // the job's number.
  uint16_t port = 0;
};

// nullopt: this process is not a task of a step. A batch script is not a task: it has the job's
// variables, but runs only on the first node. INVALID_ARGUMENT: a variable is not a number.
Result<std::optional<SlurmStep>> ReadSlurmStep(const GetVariable& get);

// Returns the first host of a Slurm host list: "node07" for "node[07-12,3],gpu1".
std::string FirstHost(absl::string_view list);

// Determines from the variables how this process was started: by torchrun, Open MPI's mpirun, RANK
// and related variables of the user, or srun. FAILED_PRECONDITION: none of these, or a variable is
// missing. INVALID_ARGUMENT: variables are invalid or contradict each other. Both messages say what
// to do.
Result<Launch> ReadLaunch(const GetVariable& get);

// Like ReadLaunch, for a caller that gives all values itself; `address` is rank 0's "HOST:PORT".
Result<Launch> LaunchAt(int rank, int world_size, const std::string& address);

// Describes what gave this process a rank among several: "torchrun (RANK=1)". Empty: nothing did.
std::string DescribeRankSource(const GetVariable& get);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_READ_LAUNCH_H_
