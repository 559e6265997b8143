// The sbatch script of a spec file, for the commands that make one.
#ifndef CADRE_LAUNCHER_SLURM_JOB_SCRIPT_H_
#define CADRE_LAUNCHER_SLURM_JOB_SCRIPT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "launcher/flags/command.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

Flag RequeuesFlag();
// INVALID_ARGUMENT: not a number.
absl::StatusOr<uint32_t> Requeues(const Parsed& parsed);

// `spec` is what is in the file `path`, with its defaults. Errors name line and column in it.
absl::StatusOr<std::string> SlurmScript(const std::string& path, const v1::JobSpec& spec,
                                        uint32_t requeues);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_JOB_SCRIPT_H_
