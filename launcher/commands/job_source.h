// Where commands about one job read of it: from a server, or from the files that a run left.
// Blocks, ten seconds at most.
#ifndef CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_
#define CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/flags/command.h"
#include "launcher/flags/settings.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// ControlFlags() and --log-dir.
std::vector<Flag> JobSourceFlags();

// The verdict that a run left in its directory.
absl::StatusOr<v1::Verdict> ReadVerdict(const std::string& directory);

// With --log-dir, of the run that is over there: name, phase, verdict and timeline. Else what the
// server says. NOT_FOUND: no such job.
absl::StatusOr<v1::JobStatus> FindJob(const Settings& settings, const std::string& job);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_
