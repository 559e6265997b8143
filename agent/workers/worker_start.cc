#include "agent/workers/worker_start.h"

#include <errno.h>

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/workers/cpus.h"
#include "agent/workers/gpus.h"
#include "base/check.h"
#include "base/disk_full.h"
#include "base/log_paths.h"
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

StreamRouting RoutingOf(const std::vector<StreamRouting>& routing, uint32_t local_rank) {
  return local_rank < routing.size() ? routing[local_rank] : StreamRouting{};
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> Binding(const std::string& bind,
                                                           const v1::JobSpec& spec,
                                                           uint32_t workers) {
  if (bind.empty() || bind == "none") return PlanBinding(bind, workers, {});
  std::vector<std::vector<uint32_t>> gpu_cpus;
  if (bind == "gpu") {
    const GpuList found = FindGpus();
    const uint32_t each = std::max<uint32_t>(1, spec.resources().gpus_per_worker());
    if (found.gpus.size() < size_t{workers} * each) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--bind gpu: ", workers, " workers need ", uint64_t{workers} * each, " GPUs, there are ",
          found.gpus.size(), found.reason.empty() ? "" : absl::StrCat(" (", found.reason, ")")));
    }
    for (uint32_t i = 0; i < workers; ++i) gpu_cpus.push_back(found.gpus[i * each].cpus);
  }
  ASSIGN_OR_RETURN(const std::vector<CpuCore> cores, FindCores());
  return PlanBinding(bind, workers, cores, gpu_cpus);
}

std::string WorkingDirectory(const v1::JobSpec& spec) {
  if (!spec.working_dir().empty()) return spec.working_dir();
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

// Whether the worker's stream is to be shown on the terminal.
bool ShownOnTerminal(const OutputOptions& output, const std::vector<StreamRouting>& routing,
                     uint32_t local_rank, uint32_t rank) {
  if (!RoutingOf(routing, local_rank).terminal) return false;
  const auto chosen = [](const std::set<uint32_t>& set, uint32_t value) {
    return set.empty() || set.count(value) != 0;
  };
  return chosen(output.terminal_local_ranks, local_rank) && chosen(output.terminal_ranks, rank);
}

}  // namespace

absl::StatusOr<std::vector<supervisor::StartFrame>> PrepareWorkers(
    const WorkerStartOptions& options, DirectoryFailure* failure, const MakeLogDirectory& make) {
  const WorkerEnvironmentOptions& from = options.environment;
  const OutputOptions& output = options.output;
  ASSIGN_OR_RETURN(std::vector<std::vector<uint32_t>> cpus,
                   Binding(from.workers.bind, from.spec, from.assign.local_world_size()));
  CADRE_CHECK(cpus.size() == from.assign.local_world_size(), "a plan for ", cpus.size(), " of ",
              from.assign.local_world_size(), " workers");
  const bool has_logs = !output.log_dir.empty();
  // Workers may start in another directory than this process.
  std::error_code error;
  const std::string root =
      std::filesystem::absolute(has_logs ? output.log_dir : options.scratch, error)
          .lexically_normal()
          .string();
  const std::string run = RunSubdirectory(from.job, from.assign.run());
  std::vector<supervisor::StartFrame> frames;
  for (uint32_t local_rank = 0; local_rank < from.assign.local_world_size(); ++local_rank) {
    const uint32_t rank = from.assign.first_rank() + local_rank;
    const std::string below = RankDirectory(run, from.generation, rank);
    std::string directory = absl::StrCat(root, "/", below);
    int directory_error = 0;
    absl::Status made = has_logs ? make(root, below, &directory_error)
                                 : MakeRunDirectory(root, below, &directory_error);
    if (!made.ok() && failure != nullptr) *failure = {directory_error, root};
    const bool logs = has_logs && made.ok();
    if (has_logs && !made.ok() &&
        (options.had_logs || IsDiskFull(directory_error) || directory_error == ETIMEDOUT)) {
      directory = RankDirectory(options.scratch, from.generation, rank);
      made = MakeRunDirectory(options.scratch, RankSubdirectory(from.generation, rank));
    }
    if (!made.ok()) return made;
    supervisor::StartFrame frame;
    frame.argv = BuildWorkerArguments(from.spec, local_rank);
    frame.error_file = absl::StrCat(directory, "/error.json");
    ASSIGN_OR_RETURN(frame.environment, BuildWorkerEnvironment(from, local_rank, frame.error_file));
    frame.assignment = AssignmentOf(frame.environment);
    frame.working_dir = WorkingDirectory(from.spec);
    if (logs && RoutingOf(output.standard_output, local_rank).file) {
      frame.stdout_path = absl::StrCat(directory, "/stdout.log");
    }
    if (logs && RoutingOf(output.standard_error, local_rank).file) {
      frame.stderr_path = absl::StrCat(directory, "/stderr.log");
    }
    frame.forward_stdout = ShownOnTerminal(output, output.standard_output, local_rank, rank);
    frame.forward_stderr = ShownOnTerminal(output, output.standard_error, local_rank, rank);
    frame.cpus = std::move(cpus[local_rank]);
    frames.push_back(std::move(frame));
  }
  return frames;
}

std::optional<supervisor::StartFrame> StandbyFor(
    const std::vector<supervisor::StartFrame>& workers) {
  if (workers.empty()) return std::nullopt;
  supervisor::StartFrame standby = workers.front();
  standby.environment = WithoutAssignment(standby.environment);
  for (const supervisor::StartFrame& worker : workers) {
    if (worker.argv != standby.argv || worker.cpus != standby.cpus ||
        WithoutAssignment(worker.environment) != standby.environment) {
      return std::nullopt;
    }
  }
  standby.stands_by = true;
  standby.assignment.clear();
  return standby;
}

supervisor::StartFrame StandbyFrame(supervisor::StartFrame standby, int index,
                                    const std::string& progress_file) {
  const std::filesystem::path directory =
      std::filesystem::path(standby.error_file).parent_path().parent_path() /
      absl::StrCat(kStandbyPrefix, index);
  standby.error_file = (directory / "error.json").string();
  if (!standby.stdout_path.empty()) standby.stdout_path = (directory / "stdout.log").string();
  if (!standby.stderr_path.empty()) standby.stderr_path = (directory / "stderr.log").string();
  standby.environment.push_back("CADRE_PROGRESS_FILE=" + progress_file);
  standby.environment.push_back("TORCHELASTIC_ERROR_FILE=" + standby.error_file);
  return standby;
}

}  // namespace cadre::agent
