// How this node starts its workers, whatever their ranks. Plain values, handed from the command
// line to where environments are built.
#ifndef CADRE_AGENT_WORKERS_WORKER_OPTIONS_H_
#define CADRE_AGENT_WORKERS_WORKER_OPTIONS_H_

#include <string>

namespace cadre::agent {

struct WorkerOptions {
  // "", or a comma-separated list of slurm and mpi.
  std::string env_style;
  // Each worker sees only its own GPUs.
  bool gpus_per_worker_own = false;
  // torchrun's --virtual-local-rank: LOCAL_RANK is 0 and only the worker's own GPUs are visible.
  bool virtual_local_rank = false;
  // TORCHELASTIC_RUN_ID: what the user wrote as torchrun's --rdzv-id, from which the job's name is
  // made. Empty: that name.
  std::string run_id;
  // none, core, numa or gpu.
  std::string bind = "none";
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_OPTIONS_H_
