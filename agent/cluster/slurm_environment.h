// The variables that Slurm gives to batch scripts and to the tasks of steps. Pure.
#ifndef CADRE_AGENT_CLUSTER_SLURM_ENVIRONMENT_H_
#define CADRE_AGENT_CLUSTER_SLURM_ENVIRONMENT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"

namespace cadre::agent {

// The variables of a batch job's script, or those that all tasks of a step on this node have in
// common; what differs between its tasks is set with their ranks (agent/workers/worker_start.h). As
// in Slurm, variables that srun reads as its defaults (SLURM_NTASKS, SLURM_MEM_PER_NODE, ...) are
// set only if the user asked for them. A variable is left out if its value is not known: a step has
// those of its script, which srun passes on. `gpus`: the indexes of the GPUs that it gets.
std::map<std::string, std::string> SlurmJobEnvironment(const v1::StartPart& start,
                                                       const std::vector<uint32_t>& gpus = {});

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_SLURM_ENVIRONMENT_H_
