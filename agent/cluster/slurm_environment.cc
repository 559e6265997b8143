#include "agent/cluster/slurm_environment.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host_ranges.h"

namespace cadre::agent {
namespace {

using Variables = std::map<std::string, std::string>;

// In any cluster of Cadre.
constexpr char kClusterName[] = "cadre";
constexpr char kPartition[] = "all";

std::vector<std::string> NodesOf(const v1::StartPart& start) {
  if (start.nodes().empty()) return {start.part().node()};
  return {start.nodes().begin(), start.nodes().end()};
}

// Of a step: those of its batch job.
std::vector<std::string> NodesOfJob(const v1::StartPart& start) {
  if (start.batch_nodes().empty()) return NodesOf(start);
  return {start.batch_nodes().begin(), start.batch_nodes().end()};
}

// All nodes have the same number of workers.
bool IsUniform(const v1::StartPart& start) {
  return start.spec().workers_per_node().kind() == v1::WorkersPerNode::COUNT ||
         start.spec().workers_per_node().kind() == v1::WorkersPerNode::KIND_UNSPECIFIED ||
         NodesOf(start).size() == 1;
}

void SetIfAny(const char* name, uint64_t value, Variables& out) {
  if (value > 0) out[name] = absl::StrCat(value);
}

void SetNumberOfTasks(uint64_t tasks, Variables& out) {
  out["SLURM_NTASKS"] = out["SLURM_NPROCS"] = absl::StrCat(tasks);
}

std::string JobName(const v1::StartPart& start) {
  const v1::BatchScript& batch = start.spec().batch();
  if (!batch.name().empty()) return batch.name();
  // A step has that of its script, which srun passes on.
  const auto passed_on = start.spec().env().find("SLURM_JOB_NAME");
  const bool is_known = start.step_of() != 0 && passed_on != start.spec().env().end();
  return is_known ? passed_on->second : start.job_name();
}

// Adds the variables that only an element of an array has.
void SetArray(const v1::StartPart& start, Variables& out) {
  if (start.array() == 0) return;
  out["SLURM_ARRAY_JOB_ID"] = absl::StrCat(start.array());
  out["SLURM_ARRAY_TASK_ID"] = absl::StrCat(start.array_index());
  out["SLURM_ARRAY_TASK_COUNT"] = absl::StrCat(start.array_size());
  out["SLURM_ARRAY_TASK_MIN"] = absl::StrCat(start.array_first());
  out["SLURM_ARRAY_TASK_MAX"] = absl::StrCat(start.array_last());
}

void SetJob(const v1::StartPart& start, Variables& out) {
  const std::vector<std::string> nodes = NodesOfJob(start);
  out["SLURM_CLUSTER_NAME"] = kClusterName;
  out["SLURM_JOB_PARTITION"] = kPartition;
  const uint64_t id = start.step_of() != 0 ? start.step_of() : start.job_id();
  out["SLURM_JOB_ID"] = out["SLURM_JOBID"] = absl::StrCat(id);
  out["SLURM_JOB_NAME"] = JobName(start);
  out["SLURM_JOB_USER"] = start.user();
  out["SLURM_JOB_NUM_NODES"] = absl::StrCat(nodes.size());
  out["SLURM_JOB_NODELIST"] = out["SLURM_NODELIST"] = CompressHosts(nodes);
}

// What the job or the step has of this node.
void SetShare(const v1::StartPart& start, Variables& out) {
  const v1::Part& part = start.part();
  out["SLURMD_NODENAME"] = part.node();
  SetIfAny("SLURM_CPUS_ON_NODE", part.cpus(), out);
  SetIfAny("SLURM_GPUS_ON_NODE", part.gpus(), out);
  SetIfAny("SLURM_CPUS_PER_TASK", start.spec().resources().cpus_per_worker(), out);
}

// What a job has of its nodes, which is the same on all of them.
void SetShareOfNodes(const v1::StartPart& start, Variables& out) {
  const v1::Part& part = start.part();
  if (part.cpus() > 0 && IsUniform(start)) {
    out["SLURM_JOB_CPUS_PER_NODE"] =
        CompressCounts(std::vector<uint32_t>(NodesOf(start).size(), part.cpus()));
  }
  SetIfAny("SLURM_GPUS_PER_NODE", part.gpus(), out);
  const uint64_t memory = start.spec().resources().memory_per_worker();
  const uint64_t workers = std::max(part.workers(), 1u);
  if (memory <= UINT64_MAX / workers) {
    SetIfAny("SLURM_MEM_PER_NODE", memory * workers / (1 << 20), out);
  }
}

// The tasks of a batch job are spread over its nodes as evenly as possible, the first nodes get one
// more.
std::vector<uint32_t> Spread(uint32_t tasks, size_t nodes) {
  std::vector<uint32_t> counts(nodes, tasks / nodes);
  for (size_t i = 0; i < tasks % nodes; ++i) ++counts[i];
  return counts;
}

void SetBatch(const v1::StartPart& start, const std::vector<uint32_t>& gpus, Variables& out) {
  const v1::BatchScript& batch = start.spec().batch();
  const size_t nodes = NodesOf(start).size();
  out["ENVIRONMENT"] = "BATCH";
  out["SLURM_NNODES"] = absl::StrCat(nodes);
  // A job for which no tasks were asked for has one on each node, and srun is told of none.
  const uint32_t tasks = batch.ntasks() > 0 ? batch.ntasks() : static_cast<uint32_t>(nodes);
  const std::vector<uint32_t> counts = Spread(tasks, nodes);
  out["SLURM_TASKS_PER_NODE"] = CompressCounts(counts);
  if (batch.ntasks() > 0) SetNumberOfTasks(tasks, out);
  if (batch.ntasks() > 0 && counts.front() == counts.back() && counts.front() > 1) {
    out["SLURM_NTASKS_PER_NODE"] = absl::StrCat(counts.front());
  }
  SetShareOfNodes(start, out);
  if (!gpus.empty()) out["SLURM_JOB_GPUS"] = absl::StrJoin(gpus, ",");
  if (!batch.submit_dir().empty()) out["SLURM_SUBMIT_DIR"] = batch.submit_dir();
  if (!batch.submit_host().empty()) out["SLURM_SUBMIT_HOST"] = batch.submit_host();
  for (const char* name : {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS"}) {
    out[name] = "0";
  }
  SetIfAny("SLURM_RESTART_COUNT", start.restarts(), out);
}

void SetStep(const v1::StartPart& start, const std::vector<uint32_t>& gpus, Variables& out) {
  const std::vector<std::string> nodes = NodesOf(start);
  const std::string number = absl::StrCat(nodes.size());
  out["SLURM_STEP_ID"] = out["SLURM_STEPID"] = absl::StrCat(start.step());
  out["SLURM_STEP_NODELIST"] = CompressHosts(nodes);
  out["SLURM_STEP_NUM_NODES"] = out["SLURM_NNODES"] = number;
  if (!gpus.empty()) out["SLURM_STEP_GPUS"] = absl::StrJoin(gpus, ",");
  // A job of srun alone has no script from which its step could have these.
  if (start.step_of() == 0) SetShareOfNodes(start, out);
  const auto& differing = start.spec().slurm_step().tasks();
  std::vector<uint32_t> tasks(differing.begin(), differing.end());
  if (tasks.size() != nodes.size()) {
    if (!IsUniform(start)) return;
    tasks.assign(nodes.size(), std::max(start.part().workers(), 1u));
  }
  SetNumberOfTasks(std::accumulate(tasks.begin(), tasks.end(), uint64_t{0}), out);
  out["SLURM_STEP_NUM_TASKS"] = out["SLURM_NTASKS"];
  out["SLURM_STEP_TASKS_PER_NODE"] = out["SLURM_TASKS_PER_NODE"] = CompressCounts(tasks);
  const bool same = std::all_of(tasks.begin(), tasks.end(),
                                [&](uint32_t count) { return count == tasks.front(); });
  if (same) out["SLURM_NTASKS_PER_NODE"] = absl::StrCat(tasks.front());
}

}  // namespace

std::map<std::string, std::string> SlurmJobEnvironment(const v1::StartPart& start,
                                                       const std::vector<uint32_t>& gpus) {
  Variables variables;
  SetJob(start, variables);
  SetArray(start, variables);
  SetShare(start, variables);
  if (start.spec().has_batch()) {
    SetBatch(start, gpus, variables);
  } else {
    SetStep(start, gpus, variables);
  }
  return variables;
}

}  // namespace cadre::agent
