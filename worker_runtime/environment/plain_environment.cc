#include "worker_runtime/environment/plain_environment.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "worker_runtime/environment/slurm_step.h"

namespace cadre::environment {
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

// Takes what is missing from Slurm.
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
  // Where each task starts several ranks, Slurm's number of the task is nobody's local rank.
  if (same_world && !read.local_rank.has_value()) read.local_rank = step.local_rank;
  if (read.host.empty()) read.host = step.first_host;
  if (!read.port.has_value()) read.port = step.port;
  return OkStatus();
}

Status CheckAllAreThere(const Variables& read) {
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
  // Under torchrun Slurm's tasks are nodes.
  if (!torchrun) {
    ASSIGN_OR_RETURN(step, ReadSlurmStep(get));
  }
  const bool says_nothing = !read.rank.has_value() && !read.world_size.has_value() &&
                            read.host.empty() && !read.port.has_value();
  if (says_nothing && !step.has_value()) return std::optional<Launch>();
  if (step.has_value()) RETURN_IF_ERROR(Complete(*step, read));
  RETURN_IF_ERROR(CheckAllAreThere(read));
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

}  // namespace cadre::environment
