// Shows a Slurm job's state, what it writes and how it ends.
#ifndef CADRE_LAUNCHER_COMMANDS_SLURM_FOLLOW_H_
#define CADRE_LAUNCHER_COMMANDS_SLURM_FOLLOW_H_

#include "launcher/slurm/slurm_commands.h"

namespace cadre::launcher {

// Blocks until the job ends, or SIGINT or SIGTERM comes, which the job does not notice; one thread.
// Returns the exit status of the command: the job's, or 128 + signal.
int FollowSlurmJob(const SlurmJobId& id);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_SLURM_FOLLOW_H_
