// The sbatch script for a job spec. Pure.
#ifndef CADRE_LAUNCHER_SLURM_BATCH_SCRIPT_H_
#define CADRE_LAUNCHER_SLURM_BATCH_SCRIPT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

struct BatchScriptOptions {
  // As the nodes find them.
  std::string cadre = "cadre";
  std::string spec_path;
  // How often the job is put back into the queue after a preemption, or where too few nodes came.
  uint32_t requeues = 16;
};

// `spec` was read by ReadSpec and is complete (FillSpecDefaults). INVALID_ARGUMENT: Slurm needs to
// be told what the spec does not say, or cannot do it; "KEY: why", as SpecErrorAt takes it.
absl::StatusOr<std::string> BatchScript(const v1::JobSpec& spec, const BatchScriptOptions& options);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_BATCH_SCRIPT_H_
