// How this node starts its workers, independent of their ranks, and where their output goes. Plain
// values, passed from the command line.
#ifndef CADRE_AGENT_WORKERS_WORKER_OPTIONS_H_
#define CADRE_AGENT_WORKERS_WORKER_OPTIONS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace cadre::agent {

// The destinations of one worker's stream; torchrun's -r and -t are mapped to these.
struct StreamRouting {
  bool file = true;
  bool terminal = true;
};

struct OutputOptions {
  std::string log_dir;  // for all jobs
  // By local rank; a missing entry is {true, true}.
  std::vector<StreamRouting> standard_output;
  std::vector<StreamRouting> standard_error;
  // Only these local ranks reach the terminal; empty: all.
  std::set<uint32_t> terminal_local_ranks;
  // Only these global ranks reach the terminal; empty: all.
  std::set<uint32_t> terminal_ranks;
  // The template for LinePrefix() (worker_outputs.h).
  std::string prefix_template;
  // Displayed lines that contain one of these are also written to filtered_stdout.log and
  // filtered_stderr.log of the generation.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
};

struct WorkerOptions {
  // "", or a comma-separated list of slurm and mpi.
  std::string env_style;
  // Each worker sees only its own GPUs.
  bool gpus_per_worker_own = false;
  // torchrun's --virtual-local-rank: LOCAL_RANK is 0 and only the worker's own GPUs are visible.
  bool virtual_local_rank = false;
  // TORCHELASTIC_RUN_ID: the user's value of torchrun's --rdzv-id, from which the job's name is
  // derived. Empty: the job's name.
  std::string run_id;
  // none, core, numa or gpu.
  std::string bind = "none";
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_OPTIONS_H_
