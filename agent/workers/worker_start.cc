#include "agent/workers/worker_start.h"

#include <errno.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "agent/workers/node_hardware.h"
#include "base/check.h"
#include "base/disk_full.h"
#include "base/log_paths.h"
#include "base/output_pattern.h"
#include "base/progress_snapshot.h"
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
      return absl::InvalidArgumentError(
          absl::StrCat("placement.bind=gpu: ", workers, " workers need ", uint64_t{workers} * each,
                       " GPUs, there are ", found.gpus.size(),
                       found.reason.empty() ? "" : absl::StrCat(" (", found.reason, ")")));
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

// Whether the worker's stream is displayed on the terminal.
bool ShownOnTerminal(const OutputOptions& output, const std::vector<StreamRouting>& routing,
                     uint32_t local_rank, uint32_t rank) {
  if (!RoutingOf(routing, local_rank).terminal) return false;
  const auto chosen = [](const std::set<uint32_t>& set, uint32_t value) {
    return set.empty() || set.count(value) != 0;
  };
  return chosen(output.terminal_local_ranks, local_rank) && chosen(output.terminal_ranks, rank);
}

// The value of the first of these variables that is set and not empty.
std::string FirstOf(const std::vector<std::string>& environment,
                    std::initializer_list<absl::string_view> names) {
  for (const absl::string_view name : names) {
    for (absl::string_view entry : environment) {
      if (absl::ConsumePrefix(&entry, name) && absl::ConsumePrefix(&entry, "=") && !entry.empty()) {
        return std::string(entry);
      }
    }
  }
  return "";
}

// The files that the user named for the workers' output (logs.stdout_file).
class NamedFiles {
 public:
  explicit NamedFiles(const WorkerStartOptions& options) : options_(options) {}

  // `frame` has the environment and the working directory of the worker.
  void Choose(uint32_t rank, supervisor::StartFrame& frame) {
    const v1::LogPolicy& logs = options_.environment.spec.logs();
    if (logs.stdout_file().empty() && logs.stderr_file().empty()) return;
    const OutputPatternFields fields = FieldsOf(rank, frame.environment);
    frame.stdout_file = FileOf(logs.stdout_file(), fields, frame.working_dir);
    // As with srun: one file for both.
    const bool one = logs.stderr_file().empty();
    frame.stderr_file =
        FileOf(one ? logs.stdout_file() : logs.stderr_file(), fields, frame.working_dir);
  }

 private:
  OutputPatternFields FieldsOf(uint32_t rank, const std::vector<std::string>& environment) const {
    const WorkerEnvironmentOptions& from = options_.environment;
    OutputPatternFields fields;
    fields.job_id = FirstOf(environment, {"SLURM_JOB_ID", "CADRE_JOB_ID"});
    if (fields.job_id.empty()) fields.job_id = from.job;
    fields.step_id = from.spec.has_batch() ? "batch" : FirstOf(environment, {"SLURM_STEP_ID"});
    if (fields.step_id.empty()) fields.step_id = "0";
    fields.job_name = FirstOf(environment, {"SLURM_JOB_NAME"});
    if (fields.job_name.empty()) fields.job_name = from.job;
    fields.user = FirstOf(environment, {"SLURM_JOB_USER", "USER", "LOGNAME"});
    fields.host = options_.host;
    fields.node = from.assign.node_rank();
    fields.rank = rank;
    fields.array_id = FirstOf(environment, {"SLURM_ARRAY_JOB_ID"});
    fields.array_index = FirstOf(environment, {"SLURM_ARRAY_TASK_ID"});
    return fields;
  }

  supervisor::NamedFile FileOf(const std::string& pattern, const OutputPatternFields& fields,
                               const std::string& working_dir) {
    supervisor::NamedFile file;
    if (pattern.empty()) return file;
    file.path =
        (std::filesystem::path(working_dir) / ExpandOutputPattern(pattern, fields)).string();
    // Only the first worker of the job that opens the file removes what is in it: later ones would
    // remove what the others have written.
    const v1::Assign& assign = options_.environment.assign;
    const bool begins = assign.restart_count() == 0 && !options_.environment.spec.logs().append();
    const bool first =
        named_.insert(file.path).second && (assign.node_rank() == 0 || !IsSharedByNodes(pattern));
    if (begins && first) file.empty_before_ms = options_.began_unix_ms;
    return file;
  }

  const WorkerStartOptions& options_;
  std::set<std::string> named_;
};

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
  // Workers may start in a different directory than this process.
  std::error_code error;
  const std::string root =
      std::filesystem::absolute(has_logs ? output.log_dir : options.scratch, error)
          .lexically_normal()
          .string();
  const std::string run = RunSubdirectory(from.job, from.assign.run());
  NamedFiles named(options);
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
    named.Choose(rank, frame);
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
  // It has no rank that could be in their names.
  standby.stdout_file = standby.stderr_file = {};
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

namespace {

// Variables that SetTorchrun() and SetCadre() set over all others, or the supervisor adds. These
// differ by rank or generation.
constexpr absl::string_view kAssignment[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "CADRE_TORCH_STORE",
    "CADRE_GENERATION",
    "CADRE_PROGRESS_FILE",
    "CADRE_CHECKPOINT_FILE",
    "CADRE_STACK_FILE",
};

// These are the same for the whole job.
constexpr absl::string_view kOfTheJob[] = {
    "ROLE_NAME",     "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "CADRE_JOB",
    "CADRE_AGENT",   "CADRE_TOKEN_FILE",          "CADRE_PROGRESS_FD",   "CADRE_CHECKPOINT_MEMORY",
    "CADRE_ENCRYPT",
};

// The variables that SetSlurm() sets.
constexpr absl::string_view kOfSlurm[] = {
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_GTIDS",
    "SLURM_SRUN_COMM_HOST",
    "SLURM_LAUNCH_NODE_IPADDR",
};

template <size_t count>
bool IsIn(const absl::string_view (&names)[count], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// The entries that are (`assigned`), or are not, part of the assignment.
std::vector<std::string> Chosen(const std::vector<std::string>& environment, bool assigned) {
  std::vector<std::string> chosen;
  for (const std::string& entry : environment) {
    const absl::string_view name = absl::string_view(entry).substr(0, entry.find('='));
    if (IsIn(kAssignment, name) == assigned) chosen.push_back(entry);
  }
  return chosen;
}

using Variables = std::map<std::string, std::string>;

Variables Inherit(const WorkerEnvironmentOptions& options) {
  Variables variables;
  for (const std::string& entry : options.base) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  for (const auto& [name, value] : options.spec.env()) variables[name] = value;
  return variables;
}

void SetTorchrun(const WorkerEnvironmentOptions& options, uint32_t local_rank,
                 const std::string& error_file, Variables& out) {
  const v1::Assign& assign = options.assign;
  const std::string rank = absl::StrCat(assign.first_rank() + local_rank);
  const std::string world = absl::StrCat(assign.world_size());
  out["RANK"] = rank;
  out["LOCAL_RANK"] = absl::StrCat(options.workers.virtual_local_rank ? 0 : local_rank);
  out["WORLD_SIZE"] = world;
  out["LOCAL_WORLD_SIZE"] = absl::StrCat(assign.local_world_size());
  out["GROUP_RANK"] = absl::StrCat(assign.node_rank());
  out["GROUP_WORLD_SIZE"] = absl::StrCat(assign.nodes());
  out["NODE_RANK"] = absl::StrCat(assign.node_rank());
  out["ROLE_NAME"] = options.spec.role().empty() ? "default" : options.spec.role();
  const bool several_roles = assign.role_world_size() > 0;
  out["ROLE_RANK"] = several_roles ? absl::StrCat(assign.role_first_rank() + local_rank) : rank;
  out["ROLE_WORLD_SIZE"] = several_roles ? absl::StrCat(assign.role_world_size()) : world;
  out["MASTER_ADDR"] = assign.master_addr();
  out["MASTER_PORT"] = absl::StrCat(assign.master_port());
  out["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(assign.restart_count());
  out["TORCHELASTIC_MAX_RESTARTS"] = absl::StrCat(assign.max_restarts());
  out["TORCHELASTIC_RUN_ID"] =
      options.workers.run_id.empty() ? options.job : options.workers.run_id;
  // With "True" every rank, rank 0 too, connects to a store as a client, so this is set only where
  // the agent serves one. In ranks that a worker starts itself, own_ranks.py tells by MASTER_ADDR
  // and MASTER_PORT whether the store is the agent's.
  out["TORCHELASTIC_USE_AGENT_STORE"] = options.agent_store ? "True" : "False";
  out["TORCHELASTIC_ERROR_FILE"] = error_file;
  out.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (assign.local_world_size() > 1) out.emplace("OMP_NUM_THREADS", "1");
}

void SetCadre(const WorkerEnvironmentOptions& options, uint32_t local_rank, Variables& out) {
  out["CADRE_JOB"] = options.job;
  out["CADRE_GENERATION"] = absl::StrCat(options.generation);
  out["CADRE_AGENT"] = options.socket;
  out["CADRE_TOKEN_FILE"] = options.token_file;
  const std::string directory = options.socket.substr(0, options.socket.rfind('/'));
  const int rank = static_cast<int>(options.assign.first_rank() + local_rank);
  out["CADRE_PROGRESS_FILE"] = ProgressFilePath(directory, options.generation, rank);
  out["CADRE_STACK_FILE"] = StackFilePath(directory, options.generation, rank);
  out["CADRE_CHECKPOINT_FILE"] = CheckpointFilePath(directory, options.generation);
  out["CADRE_CHECKPOINT_MEMORY"] = CheckpointMemoryPath(directory);
  out["CADRE_ENCRYPT"] = options.spec.encrypt() ? "1" : "0";
  // If this launcher runs within a worker of another job, that job's store must not be used.
  out.erase("CADRE_TORCH_STORE");
  if (options.agent_store) {
    out["CADRE_TORCH_STORE"] =
        absl::StrCat(options.assign.master_addr(), ":", options.assign.master_port());
  }
}

// "4,5,6".
std::string RanksOfNode(const v1::Assign& assign) {
  std::vector<uint32_t> ranks(assign.local_world_size());
  std::iota(ranks.begin(), ranks.end(), assign.first_rank());
  return absl::StrJoin(ranks, ",");
}

// As srun sets them for a step with one task per worker.
void SetSlurm(const v1::Assign& assign, uint32_t local_rank, Variables& out) {
  const std::string world = absl::StrCat(assign.world_size());
  const std::string nodes = absl::StrCat(assign.nodes());
  out["SLURM_PROCID"] = absl::StrCat(assign.first_rank() + local_rank);
  out["SLURM_LOCALID"] = absl::StrCat(local_rank);
  out["SLURM_NODEID"] = absl::StrCat(assign.node_rank());
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"}) {
    out[name] = world;
  }
  for (const char* name : {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"}) {
    out[name] = nodes;
  }
  out["SLURM_NTASKS_PER_NODE"] = absl::StrCat(assign.local_world_size());
  out["SLURM_GTIDS"] = RanksOfNode(assign);
  // Programs take it for rank 0's address, which under srun holds only if srun runs on that node.
  out["SLURM_SRUN_COMM_HOST"] = assign.master_addr();
  out["SLURM_LAUNCH_NODE_IPADDR"] = assign.master_addr();
  // These describe the launchers' step, which has one task per node.
  for (const char* name : {"SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASK_PID"}) {
    out.erase(name);
  }
}

// The numbers of a task of a step; the other variables of the step are in the spec
// (agent/cluster/slurm_environment.h).
void SetStepTask(const v1::Assign& assign, uint32_t local_rank, Variables& out) {
  out["SLURM_PROCID"] = absl::StrCat(assign.first_rank() + local_rank);
  out["SLURM_LOCALID"] = absl::StrCat(local_rank);
  out["SLURM_NODEID"] = absl::StrCat(assign.node_rank());
  out["SLURM_GTIDS"] = RanksOfNode(assign);
  // In a batch job srun runs on the first node, where rank 0 is in most cases.
  out["SLURM_SRUN_COMM_HOST"] = assign.master_addr();
  out["SLURM_LAUNCH_NODE_IPADDR"] = assign.master_addr();
}

// Whether workers would otherwise inherit their launcher's Slurm task numbers; not if the job's
// spec sets SLURM_PROCID.
bool IsInSlurm(const WorkerEnvironmentOptions& options, const Variables& variables) {
  return variables.count("SLURM_JOB_ID") != 0 && options.spec.env().count("SLURM_PROCID") == 0;
}

absl::Status SetStyles(const WorkerEnvironmentOptions& options, uint32_t local_rank,
                       Variables& out) {
  const v1::Assign& assign = options.assign;
  if (options.spec.has_slurm_step()) {
    SetStepTask(assign, local_rank, out);
  } else if (IsInSlurm(options, out)) {
    SetSlurm(assign, local_rank, out);
  }
  const std::string rank = absl::StrCat(assign.first_rank() + local_rank);
  const std::string world = absl::StrCat(assign.world_size());
  for (const absl::string_view style :
       absl::StrSplit(options.workers.env_style, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    if (style == "slurm") {
      SetSlurm(assign, local_rank, out);
    } else if (style == "mpi") {
      out["OMPI_COMM_WORLD_RANK"] = rank;
      out["OMPI_COMM_WORLD_SIZE"] = world;
      out["OMPI_COMM_WORLD_LOCAL_RANK"] = absl::StrCat(local_rank);
      out["OMPI_COMM_WORLD_NODE_RANK"] = absl::StrCat(local_rank);
      out["OMPI_COMM_WORLD_LOCAL_SIZE"] = absl::StrCat(assign.local_world_size());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--env-style: '", style, "' is unknown; expected slurm, mpi or both"));
    }
  }
  return absl::OkStatus();
}

// The script of a batch job is no rank: programs that it starts must not take themselves for one.
void SetBatchScript(const WorkerEnvironmentOptions& options, const std::string& error_file,
                    Variables& out) {
  out["TORCHELASTIC_ERROR_FILE"] = error_file;
  const uint32_t restarts = options.assign.restart_count();
  if (restarts > 0) out["SLURM_RESTART_COUNT"] = absl::StrCat(restarts);
}

absl::Status SetGpus(const WorkerEnvironmentOptions& options, uint32_t local_rank, Variables& out) {
  if (!options.workers.gpus_per_worker_own && !options.workers.virtual_local_rank)
    return absl::OkStatus();
  const uint32_t each = std::max<uint32_t>(1, options.spec.resources().gpus_per_worker());
  const uint32_t first = local_rank * each;
  std::vector<std::string> own;
  const auto inherited = out.find("CUDA_VISIBLE_DEVICES");
  if (inherited == out.end()) {
    for (uint32_t i = 0; i < each; ++i) own.push_back(absl::StrCat(first + i));
  } else {
    const std::vector<std::string> visible =
        absl::StrSplit(inherited->second, absl::ByAnyChar(", "), absl::SkipEmpty());
    if (visible.size() < first + each) {
      return absl::InvalidArgumentError(
          absl::StrCat("local rank ", local_rank, " needs GPU ", first + each - 1,
                       " of its node, but CUDA_VISIBLE_DEVICES=", inherited->second, " names only ",
                       visible.size(), "; start fewer workers or make more GPUs visible"));
    }
    own.assign(visible.begin() + first, visible.begin() + first + each);
  }
  out["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(own, ",");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> BuildWorkerEnvironment(
    const WorkerEnvironmentOptions& options, uint32_t local_rank, const std::string& error_file) {
  CADRE_CHECK(local_rank < options.assign.local_world_size(), "local rank ", local_rank, " of ",
              options.assign.local_world_size());
  Variables variables = Inherit(options);
  if (options.spec.has_batch()) {
    SetBatchScript(options, error_file, variables);
  } else {
    SetTorchrun(options, local_rank, error_file, variables);
    SetCadre(options, local_rank, variables);
    RETURN_IF_ERROR(SetStyles(options, local_rank, variables));
    RETURN_IF_ERROR(SetGpus(options, local_rank, variables));
  }
  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) environment.push_back(absl::StrCat(name, "=", value));
  return environment;
}

bool IsReservedVariable(absl::string_view name) {
  return IsIn(kAssignment, name) || IsIn(kOfTheJob, name);
}

bool IsLauncherStyleVariable(absl::string_view name) {
  return IsIn(kOfSlurm, name) || absl::StartsWith(name, "OMPI_COMM_WORLD_");
}

std::vector<std::string> AssignmentOf(const std::vector<std::string>& environment) {
  return Chosen(environment, true);
}

std::vector<std::string> WithoutAssignment(const std::vector<std::string>& environment) {
  return Chosen(environment, false);
}

std::vector<std::string> BuildWorkerArguments(const v1::JobSpec& spec, uint32_t local_rank) {
  // ${local_rank} may be a variable of the user's shell there.
  if (spec.has_batch() || spec.has_slurm_step()) {
    return {spec.command().begin(), spec.command().end()};
  }
  std::vector<std::string> arguments;
  for (const std::string& argument : spec.command()) {
    arguments.push_back(
        absl::StrReplaceAll(argument, {{"${local_rank}", absl::StrCat(local_rank)}}));
  }
  return arguments;
}

}  // namespace cadre::agent
