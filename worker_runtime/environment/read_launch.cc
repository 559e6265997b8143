// Finds the launcher of this process by the variables of torchrun, Open MPI, Slurm or the user.
#include "worker_runtime/environment/read_launch.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "cadre/status.h"

namespace cadre::environment {
namespace {

Status NoLauncherFound(const GetVariable& get) {
  if (!TextOf(get, "PMI_RANK").empty()) {
    return FailedPreconditionError(
        "this mpirun is not Open MPI's: start the program with Cadre, \"mpirun ... cadre run -- "
        "PROGRAM\", or "
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
    return FailedPreconditionError(absl::StrCat(
        launch.launcher, " started ", launch.world_size,
        " processes; without Cadre's launcher at most ", kMaxLaunchedRanks,
        " find each other: start the program with Cadre, \"... cadre run -- PROGRAM\""));
  }
  return InvalidArgumentError(absl::StrCat("rank ", launch.rank, " of ", launch.world_size,
                                           ": a rank must be below the size of the world"));
}

// Whether Open MPI's ranks apply: not if the other variables describe another world, since mpirun
// then started the program that starts the ranks.
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
  if (!launch.has_value()) return NoLauncherFound(get);
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

std::string DescribeRankSource(const GetVariable& get) {
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
  // An interactive shell under Slurm is a step with one task.
  if (step.ok() && step->has_value() && (*step)->tasks > 1) return given("srun", "SLURM_PROCID");
  return "";
}

namespace {

constexpr char kOtherwise[] = "start the program with Cadre: mpirun ... cadre run -- PROGRAM";

Result<int> NeededNumber(const GetVariable& get, const char* name) {
  ASSIGN_OR_RETURN(const std::optional<int> number, NumberOf(get, name));
  if (number.has_value()) return *number;
  return FailedPreconditionError(absl::StrCat(
      name, " is not set although OMPI_COMM_WORLD_RANK is: pass all of Open MPI's variables on"));
}

// Returns the first address of an Open MPI URI: "10.77.0.1" for
// "425263104.0;tcp://10.77.0.1,10.1.0.1:37987;tcp6://...".
std::string FirstAddress(absl::string_view uri) {
  constexpr absl::string_view kScheme = "tcp://";
  const size_t at = uri.find(kScheme);
  if (at == uri.npos) return "";
  uri.remove_prefix(at + kScheme.size());
  return std::string(uri.substr(0, uri.find_first_of(",:;")));
}

std::string FileName(absl::string_view text) {
  std::string name(text.substr(0, 128));
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains("-_.@", c)) c = '_';
  }
  return absl::StrCat("mpi-", name);
}

}  // namespace

bool StartedByMpi(const GetVariable& get) { return !TextOf(get, "OMPI_COMM_WORLD_RANK").empty(); }

Result<Launch> ReadMpiEnvironment(const GetVariable& get) {
  Launch launch;
  launch.launcher = "mpirun";
  ASSIGN_OR_RETURN(launch.rank, NeededNumber(get, "OMPI_COMM_WORLD_RANK"));
  ASSIGN_OR_RETURN(launch.world_size, NeededNumber(get, "OMPI_COMM_WORLD_SIZE"));
  ASSIGN_OR_RETURN(launch.local_rank, NeededNumber(get, "OMPI_COMM_WORLD_LOCAL_RANK"));
  ASSIGN_OR_RETURN(launch.local_world_size, NeededNumber(get, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  const int local_rank = *launch.local_rank, local_world_size = *launch.local_world_size;
  if (launch.rank >= launch.world_size || local_rank >= local_world_size ||
      local_world_size > launch.world_size) {
    return InvalidArgumentError(absl::StrCat(
        "Open MPI's variables contradict each other: rank ", launch.rank, " of ", launch.world_size,
        ", ", local_rank, " of ", local_world_size, " on this node"));
  }
  launch.one_node = local_world_size == launch.world_size;
  const absl::string_view name = TextOf(get, "PMIX_NAMESPACE");
  if (name.empty()) {
    return FailedPreconditionError(absl::StrCat(
        "PMIX_NAMESPACE is not set, so this mpirun has no name by which its processes find each "
        "other: ",
        kOtherwise));
  }
  launch.name = FileName(name);
  ThroughFile meeting;
  meeting.name = launch.name;
  if (!*launch.one_node) {
    meeting.address = FirstAddress(TextOf(get, "OMPI_MCA_orte_local_daemon_uri"));
    if (meeting.address.empty()) {
      return FailedPreconditionError(absl::StrCat(
          "this mpirun does not set the address at which other nodes reach this one (Open MPI 4 "
          "does, in OMPI_MCA_orte_local_daemon_uri): ",
          kOtherwise));
    }
  }
  launch.meeting = std::move(meeting);
  return launch;
}

namespace {

constexpr const char* kNeeded[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

struct Variables {
  std::optional<int> rank, world_size, local_rank, local_world_size, port;
  std::string host;
};

Result<Variables> ReadVariables(const GetVariable& get) {
  Variables read;
  ASSIGN_OR_RETURN(read.rank, NumberOf(get, "RANK"));
  ASSIGN_OR_RETURN(read.world_size, NumberOf(get, "WORLD_SIZE"));
  ASSIGN_OR_RETURN(read.local_rank, NumberOf(get, "LOCAL_RANK"));
  ASSIGN_OR_RETURN(read.local_world_size, NumberOf(get, "LOCAL_WORLD_SIZE"));
  ASSIGN_OR_RETURN(read.port, NumberOf(get, "MASTER_PORT"));
  absl::string_view host = TextOf(get, "MASTER_ADDR");
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  read.host = std::string(host);
  return read;
}

Status Contradiction(const char* one, int is, const char* other, int is_there,
                     const char* what_to_do) {
  return InvalidArgumentError(
      absl::StrCat(one, " is ", is, ", but ", other, " is ", is_there, ": ", what_to_do));
}

// Fills in missing values from Slurm.
Status Complete(const SlurmStep& step, Variables& read) {
  if (!read.rank.has_value() && read.world_size.has_value() && read.world_size != step.tasks) {
    return Contradiction("WORLD_SIZE", *read.world_size, step.tasks_variable, step.tasks,
                         "unset WORLD_SIZE, or set RANK too (it is taken from SLURM_PROCID)");
  }
  const bool same_world = !read.world_size.has_value() || read.world_size == step.tasks;
  if (same_world && read.rank.has_value() && read.rank != step.rank) {
    return Contradiction("RANK", *read.rank, "SLURM_PROCID", step.rank,
                         "unset RANK, or make it the same");
  }
  if (!read.rank.has_value()) read.rank = step.rank;
  if (!read.world_size.has_value()) read.world_size = step.tasks;
  // If each task starts several ranks, Slurm's local task id is not a local rank.
  if (same_world && !read.local_rank.has_value()) read.local_rank = step.local_rank;
  if (read.host.empty()) read.host = step.first_host;
  if (!read.port.has_value()) read.port = step.port;
  return OkStatus();
}

Status CheckNoneIsMissing(const Variables& read) {
  const bool there[] = {read.rank.has_value(), read.world_size.has_value(), !read.host.empty(),
                        read.port.has_value()};
  std::vector<std::string> set, missing;
  for (size_t i = 0; i < 4; ++i) (there[i] ? set : missing).push_back(kNeeded[i]);
  if (missing.empty()) return OkStatus();
  return FailedPreconditionError(absl::StrCat(
      absl::StrJoin(set, ", "), set.size() > 1 ? " are" : " is", " set, but ",
      absl::StrJoin(missing, ", "), missing.size() > 1 ? " are" : " is",
      " not: each process needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which a launcher "
      "sets (torchrun, or \"cadre run\"); unset all of them to use none"));
}

Status CheckNumbers(const Variables& read) {
  if (*read.rank >= *read.world_size) {
    return Contradiction("RANK", *read.rank, "WORLD_SIZE", *read.world_size,
                         "ranks go from 0 to WORLD_SIZE - 1");
  }
  const int local_size = read.local_world_size.value_or(*read.world_size);
  if (read.local_rank.has_value() && *read.local_rank >= local_size) {
    return Contradiction("LOCAL_RANK", *read.local_rank,
                         read.local_world_size.has_value() ? "LOCAL_WORLD_SIZE" : "WORLD_SIZE",
                         local_size, "local ranks go from 0 to LOCAL_WORLD_SIZE - 1");
  }
  if (local_size < 1 || local_size > *read.world_size) {
    return Contradiction("LOCAL_WORLD_SIZE", local_size, "WORLD_SIZE", *read.world_size,
                         "a node has at least one rank, and no more than the world");
  }
  if (*read.port >= 1 && *read.port <= 65535) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("MASTER_PORT is ", *read.port, ", but must be a port, 1 to 65535"));
}

}  // namespace

bool StartedByTorchrun(const GetVariable& get) {
  return !TextOf(get, "TORCHELASTIC_RUN_ID").empty();
}

Result<std::optional<Launch>> ReadPlainEnvironment(const GetVariable& get) {
  const bool torchrun = StartedByTorchrun(get);
  ASSIGN_OR_RETURN(Variables read, ReadVariables(get));
  std::optional<SlurmStep> step;
  // Under torchrun each Slurm task is a node.
  if (!torchrun) {
    ASSIGN_OR_RETURN(step, ReadSlurmStep(get));
  }
  const bool says_nothing = !read.rank.has_value() && !read.world_size.has_value() &&
                            read.host.empty() && !read.port.has_value();
  if (says_nothing && !step.has_value()) return std::optional<Launch>();
  if (step.has_value()) RETURN_IF_ERROR(Complete(*step, read));
  RETURN_IF_ERROR(CheckNoneIsMissing(read));
  RETURN_IF_ERROR(CheckNumbers(read));

  Launch launch;
  launch.launcher = torchrun ? "torchrun" : step.has_value() ? "srun" : "the environment";
  launch.rank = *read.rank;
  launch.world_size = *read.world_size;
  launch.local_rank = read.local_rank;
  launch.local_world_size = read.local_world_size;
  if (read.local_world_size.has_value()) {
    launch.one_node = *read.local_world_size == launch.world_size;
  } else if (step.has_value()) {
    launch.one_node = step->nodes == 1;
  }
  const auto port = static_cast<uint16_t>(*read.port);
  launch.meeting = AtAddress{read.host, port};
  launch.name = step.has_value() ? step->name : absl::StrCat(read.host, ":", port);
  if (!torchrun) return std::optional<Launch>(std::move(launch));
  launch.name = std::string(TextOf(get, "TORCHELASTIC_RUN_ID"));
  ASSIGN_OR_RETURN(const std::optional<int> restarts, NumberOf(get, "TORCHELASTIC_RESTART_COUNT"));
  launch.restart_count = restarts.value_or(0);
  if (TextOf(get, "TORCHELASTIC_USE_AGENT_STORE") == "True") {
    launch.meeting = ThroughTorchrun{
        read.host, port, absl::StrCat("/cadre/", launch.name, "/", launch.restart_count, "/store")};
  }
  return std::optional<Launch>(std::move(launch));
}

namespace {

constexpr uint64_t kFirstPort = 15000;
constexpr uint64_t kPorts = 10000;
// The distance between the ports of two steps of one job.
constexpr uint64_t kStepStride = 101;

uint64_t IdIn(const GetVariable& get, const char* name) {
  uint64_t id = 0;
  return absl::SimpleAtoi(TextOf(get, name), &id) ? id : 0;
}

}  // namespace

std::string FirstHost(absl::string_view list) {
  std::string host;
  bool skips = false;
  bool inside = false;
  for (const char c : list) {
    if (c == ',' && !inside) break;
    if (c == '[') {
      inside = true;
    } else if (c == ']') {
      inside = skips = false;
    } else if (inside && (c == ',' || c == '-')) {
      // The other hosts of this bracket follow.
      skips = true;
    } else if (!skips) {
      host += c;
    }
  }
  return host;
}

Result<std::optional<SlurmStep>> ReadSlurmStep(const GetVariable& get) {
  absl::string_view list = TextOf(get, "SLURM_STEP_NODELIST");
  const bool in_step = !list.empty() || !TextOf(get, "SLURM_STEP_ID").empty();
  if (list.empty()) list = TextOf(get, "SLURM_JOB_NODELIST");
  SlurmStep step;
  ASSIGN_OR_RETURN(const std::optional<int> rank, NumberOf(get, "SLURM_PROCID"));
  // The step's own number has priority: the job's may be inherited.
  ASSIGN_OR_RETURN(std::optional<int> tasks, NumberOf(get, "SLURM_STEP_NUM_TASKS"));
  if (tasks.has_value()) {
    step.tasks_variable = "SLURM_STEP_NUM_TASKS";
  } else {
    ASSIGN_OR_RETURN(tasks, NumberOf(get, "SLURM_NTASKS"));
  }
  if (!in_step || !rank.has_value() || !tasks.has_value()) return std::optional<SlurmStep>();
  step.rank = *rank;
  step.tasks = *tasks;
  ASSIGN_OR_RETURN(step.local_rank, NumberOf(get, "SLURM_LOCALID"));
  ASSIGN_OR_RETURN(std::optional<int> nodes, NumberOf(get, "SLURM_STEP_NUM_NODES"));
  if (!nodes.has_value()) {
    ASSIGN_OR_RETURN(nodes, NumberOf(get, "SLURM_NNODES"));
  }
  step.nodes = nodes.value_or(list.find_first_of("[,") == list.npos ? 1 : 2);
  step.first_host = step.nodes > 1 ? FirstHost(list) : "127.0.0.1";
  const uint64_t job = IdIn(get, "SLURM_JOB_ID"), number = IdIn(get, "SLURM_STEP_ID");
  step.port =
      static_cast<uint16_t>(kFirstPort + (job % kPorts + kStepStride * (number % kPorts)) % kPorts);
  step.name = absl::StrCat("slurm-", job, ".", number);
  return std::optional<SlurmStep>(std::move(step));
}

}  // namespace cadre::environment
