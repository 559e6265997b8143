// The sbatch script of a job spec, and the flag --requeues of the commands that make one.
#ifndef CADRE_LAUNCHER_SLURM_BATCH_SCRIPT_H_
#define CADRE_LAUNCHER_SLURM_BATCH_SCRIPT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "launcher/flags/command.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

struct BatchScriptOptions {
  // Paths as the nodes see them.
  std::string cadre = "cadre";
  std::string spec_path;
  // How often the job is requeued after a preemption, or if too few nodes joined.
  uint32_t requeues = 16;
};

// Pure. `spec` was read by ReadSpec and is complete (FillSpecDefaults). INVALID_ARGUMENT: Slurm
// needs a value that the spec does not have, or cannot do what it asks; "KEY: why", as SpecErrorAt
// takes it.
absl::StatusOr<std::string> BatchScript(const v1::JobSpec& spec, const BatchScriptOptions& options);

// The same for the spec that is the content of the file `path`, with defaults, and for this
// program. Errors name line and column in the file.
absl::StatusOr<std::string> SlurmScript(const std::string& path, const v1::JobSpec& spec,
                                        uint32_t requeues);

Flag RequeuesFlag();
// INVALID_ARGUMENT: not a number.
absl::StatusOr<uint32_t> Requeues(const Parsed& parsed);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_BATCH_SCRIPT_H_
