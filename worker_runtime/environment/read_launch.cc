#include "worker_runtime/environment/read_launch.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "worker_runtime/environment/mpi_environment.h"
#include "worker_runtime/environment/plain_environment.h"
#include "worker_runtime/environment/slurm_step.h"

namespace cadre::environment {
namespace {

Status NobodyStartedIt(const GetVariable& get) {
  if (!TextOf(get, "PMI_RANK").empty()) {
    return FailedPreconditionError(
        "this mpirun is not Open MPI's: put Cadre between, \"mpirun ... cadre run -- PROGRAM\", or "
        "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process");
  }
  return FailedPreconditionError(
      "no launcher gave this process a rank: start it with \"cadre run --nproc-per-node N "
      "PROGRAM\", torchrun, mpirun or srun, set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for "
      "each process, or let the program call cadre::Spawn()");
}

Result<Launch> Checked(Launch launch) {
  if (launch.rank >= 0 && launch.rank < launch.world_size) {
    if (launch.world_size <= kMaxLaunchedRanks) return launch;
    return FailedPreconditionError(
        absl::StrCat(launch.launcher, " started ", launch.world_size,
                     " processes; without Cadre's launcher at most ", kMaxLaunchedRanks,
                     " find each other: put Cadre between, \"... cadre run -- PROGRAM\""));
  }
  return InvalidArgumentError(absl::StrCat("rank ", launch.rank, " of ", launch.world_size,
                                           ": a rank must be below the size of the world"));
}

// Open MPI's ranks, unless the other variables speak of another world: then mpirun started what
// starts the ranks.
Result<bool> CountsByMpi(const GetVariable& get) {
  if (!StartedByMpi(get)) return false;
  ASSIGN_OR_RETURN(const std::optional<int> rank, NumberOf(get, "RANK"));
  ASSIGN_OR_RETURN(const std::optional<int> size, NumberOf(get, "WORLD_SIZE"));
  ASSIGN_OR_RETURN(const std::optional<int> mpi_rank, NumberOf(get, "OMPI_COMM_WORLD_RANK"));
  ASSIGN_OR_RETURN(const std::optional<int> mpi_size, NumberOf(get, "OMPI_COMM_WORLD_SIZE"));
  if (!rank.has_value()) return true;
  if (size.has_value() && size != mpi_size) return false;
  if (rank == mpi_rank) return true;
  return InvalidArgumentError(absl::StrCat("RANK is ", *rank, ", but OMPI_COMM_WORLD_RANK is ",
                                           mpi_rank.value_or(-1),
                                           ": unset RANK, or make it the same"));
}

}  // namespace

Result<Launch> ReadLaunch(const GetVariable& get) {
  if (!StartedByTorchrun(get)) {
    ASSIGN_OR_RETURN(const bool by_mpi, CountsByMpi(get));
    if (by_mpi) {
      ASSIGN_OR_RETURN(Launch launch, ReadMpiEnvironment(get));
      return Checked(std::move(launch));
    }
  }
  ASSIGN_OR_RETURN(std::optional<Launch> launch, ReadPlainEnvironment(get));
  if (!launch.has_value()) return NobodyStartedIt(get);
  return Checked(*std::move(launch));
}

Result<Launch> LaunchAt(int rank, int world_size, const std::string& address) {
  Launch launch;
  launch.launcher = "WorkerOptions";
  launch.name = address;
  launch.rank = rank;
  launch.world_size = world_size;
  const size_t colon = address.rfind(':');
  AtAddress at;
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return InvalidArgumentError(
        absl::StrCat("WorkerOptions::address is '", address, "', but must be rank 0's HOST:PORT"));
  }
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  at.host = std::string(host);
  at.port = static_cast<uint16_t>(port);
  launch.meeting = at;
  return Checked(std::move(launch));
}

std::string WhoGaveARank(const GetVariable& get) {
  const auto given = [&](absl::string_view who, const char* variable) {
    return absl::StrCat(who, " (", variable, "=", TextOf(get, variable), ")");
  };
  if (!TextOf(get, "CADRE_AGENT").empty() || get("CADRE_STANDS_BY") != nullptr) {
    return TextOf(get, "RANK").empty() ? "Cadre's agent" : given("Cadre's agent", "RANK");
  }
  if (StartedByTorchrun(get)) return given("torchrun", "RANK");
  if (StartedByMpi(get)) return given("mpirun", "OMPI_COMM_WORLD_RANK");
  if (!TextOf(get, "RANK").empty()) return given("the environment", "RANK");
  const Result<std::optional<SlurmStep>> step = ReadSlurmStep(get);
  // An interactive shell under Slurm is a step of one task.
  if (step.ok() && step->has_value() && (*step)->tasks > 1) return given("srun", "SLURM_PROCID");
  return "";
}

}  // namespace cadre::environment
