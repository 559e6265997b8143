// What the launcher of a batch job's script or of a step gets beside what all launchers get: the
// script in a file, Slurm's variables, and a token of the job's user, so that srun, squeue, cadre
// status and other commands work there. The scripts of a Slurm cluster have the same rights by
// munge.
#ifndef CADRE_AGENT_CLUSTER_SLURM_LAUNCH_H_
#define CADRE_AGENT_CLUSTER_SLURM_LAUNCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/cluster/allocation_launcher.h"
#include "agent/cluster/users.h"
#include "proto/cluster.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

// Files in the allocation's directory: the script; the user's token; and whose token it is, which
// the user cannot change.
inline constexpr char kBatchScript[] = "slurm_script";
inline constexpr char kUserToken[] = "user-token";
inline constexpr char kUserTokenOwner[] = "user-token-owner";

// How long a user's token is valid. It is replaced once half of this time is over, so that one that
// was copied is of use for at most this long.
inline constexpr absl::Duration kUserTokenLifetime = absl::Hours(24);

// Whether the allocation runs a batch job's script or a step.
inline bool IsOfSlurm(const v1::StartPart& start) {
  return start.spec().has_batch() || start.spec().has_slurm_step();
}

// The interpreter that the script's first line names, its argument, and the script's path, as the
// kernel would run the script. It is not left to the kernel, because the agent's directory may lie
// on a file system from which nothing can be executed. Pure.
std::vector<std::string> ScriptCommand(absl::string_view script, const std::string& path);

// Writes the files into the allocation's directory and returns the spec for its launcher, which
// differs from the server's in variables and, for a script, in the program. `server_id` is 0 if the
// server does not say it; then there is no token. Blocks on the file system.
absl::StatusOr<v1::JobSpec> PrepareSlurmSpec(const LauncherOptions& options,
                                             const v1::StartPart& start,
                                             const std::vector<uint32_t>& gpus, uint64_t server_id,
                                             const UserEntry& user, const std::string& directory);

// Replaces the user's token in an allocation's directory if there is one that is not valid with
// this secret, or whose life is half over. Blocks on the file system.
void RenewUserToken(const std::string& directory, const std::string& secret, absl::Time now);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_SLURM_LAUNCH_H_
