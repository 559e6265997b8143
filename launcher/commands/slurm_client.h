// What the commands with Slurm's names share: the server that they ask, and how they fail.
#ifndef CADRE_LAUNCHER_COMMANDS_SLURM_CLIENT_H_
#define CADRE_LAUNCHER_COMMANDS_SLURM_CLIENT_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/attach/control_client.h"
#include "launcher/slurm/job_record.h"
#include "launcher/slurm/squeue_text.h"

namespace cadre::launcher {

// Connects to the server of CADRE_SERVER, or of this machine's configuration file.
absl::StatusOr<std::unique_ptr<ControlClient>> ConnectToServer();

// All jobs that the server knows, and what they have of the cluster's nodes.
struct ServerJobs {
  std::vector<v1::JobStatus> jobs;
  v1::ListNodesReply nodes;

  // Those that were submitted, and their steps.
  std::vector<JobRecord> Records() const { return RecordsOf(jobs, nodes); }
};
absl::StatusOr<ServerJobs> LoadJobs(ControlClient& client);
// Asks for the nodes of those of the records that have ended, which lists of jobs do not have, and
// puts them into `jobs`.
absl::Status LoadEndedJobs(ControlClient& client, const std::vector<JobRecord>& records,
                           ServerJobs* jobs);

// The time, the zone and the users of this machine.
TextSurroundings HereAndNow();

// The names of users that were given by name or by number, and that of the user of this process if
// `me`.
absl::StatusOr<std::set<std::string>> UserNames(const std::vector<std::string>& given, bool me);

// Writes "squeue: error: TEXT" and returns 1, with which Slurm's commands fail.
int FailAsSlurm(absl::string_view text);

// The same for an error of the command line, with a line that names the command's help. `command`
// is the command's name.
int FailUsage(absl::string_view command, const absl::Status& error);

// What the commands print for --version. Scripts read the number of Slurm's release from it.
int PrintSlurmVersion();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_SLURM_CLIENT_H_
