// Hands a job to Slurm.
#ifndef CADRE_LAUNCHER_COMMANDS_SLURM_SUBMIT_H_
#define CADRE_LAUNCHER_COMMANDS_SLURM_SUBMIT_H_

#include <cstdint>
#include <string>

#include "proto/spec.pb.h"

namespace cadre::launcher {

struct SlurmSubmission {
  // The spec's file, and what is in it, with its defaults and a name.
  std::string path;
  v1::JobSpec spec;
  uint32_t requeues = 0;
  bool json = false;
  bool follow = false;
};

// Writes the job's script into its directory of logs, gives it to sbatch and prints the number that
// it gets. Returns the exit status of the command: of the job when it was followed to its end.
int SubmitToSlurm(const SlurmSubmission& submission);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_SLURM_SUBMIT_H_
