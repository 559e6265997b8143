// cadre submit --slurm: a job handed to Slurm. The command cadre slurm is in the same source.
#ifndef CADRE_LAUNCHER_COMMANDS_SLURM_H_
#define CADRE_LAUNCHER_COMMANDS_SLURM_H_

#include <cstdint>
#include <string>

#include "proto/spec.pb.h"

namespace cadre::launcher {

struct SlurmSubmission {
  // The path of the spec's file, and its content, with defaults and a name.
  std::string path;
  v1::JobSpec spec;
  uint32_t requeues = 0;
  bool json = false;
  bool follow = false;
};

// Writes the job's script into its log directory, submits it with sbatch and prints its number.
// Returns the command's exit status: that of the job if it was followed to its end.
int SubmitToSlurm(const SlurmSubmission& submission);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_SLURM_H_
