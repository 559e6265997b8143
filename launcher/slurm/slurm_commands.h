// Questions to Slurm, by its own commands on PATH. Blocks, with deadlines; thread safe.
#ifndef CADRE_LAUNCHER_SLURM_SLURM_COMMANDS_H_
#define CADRE_LAUNCHER_SLURM_SLURM_COMMANDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/slurm/slurm_job.h"

namespace cadre::launcher {

// A job's number, that of an array's task as NUMBER_TASK; with several clusters "NUMBER;CLUSTER",
// as sbatch --parsable gives it.
using SlurmJobId = std::string;

// INVALID_ARGUMENT: it is none.
absl::Status CheckSlurmJobId(const SlurmJobId& id);

// Of variables of the environment, by name, those that a launcher has for its processes: what
// sbatch finds of them it passes on to the job, whose srun and launchers take it for their own.
bool IsOfAnotherJob(absl::string_view variable);

// UNAVAILABLE: there is no sbatch, or it refuses, in its words.
absl::StatusOr<SlurmJobId> Sbatch(const std::string& script);

// NOT_FOUND: Slurm does not know it, or no more; UNAVAILABLE: it does not answer.
absl::StatusOr<SlurmJob> ShowJob(const SlurmJobId& id);

// The command lines with which a person cancels it, and follows it.
std::string ScancelLine(const SlurmJobId& id);
std::string FollowLine(const SlurmJobId& id);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SLURM_COMMANDS_H_
