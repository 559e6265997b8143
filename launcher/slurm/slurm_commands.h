// Slurm through its commands on PATH: submits jobs (sbatch), and reads what scontrol says of jobs
// and nodes. Each command is run to its end, with a timeout, which blocks the caller. Functions
// that run no command are pure; all are thread safe.
#ifndef CADRE_LAUNCHER_SLURM_SLURM_COMMANDS_H_
#define CADRE_LAUNCHER_SLURM_SLURM_COMMANDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre::launcher {

// A job's number, NUMBER_TASK for a task of an array; with several clusters "NUMBER;CLUSTER", as
// sbatch --parsable prints it.
using SlurmJobId = std::string;

// INVALID_ARGUMENT: the id is not valid.
absl::Status CheckSlurmJobId(const SlurmJobId& id);

// --- submitting ---

// UNAVAILABLE: there is no sbatch, or it refuses the job; the message is sbatch's own.
absl::StatusOr<SlurmJobId> Sbatch(const std::string& script);

// Whether a launcher sets this environment variable for its processes. sbatch would pass it on to
// the new job, whose srun and launchers would take it for their own.
bool IsLauncherVariable(absl::string_view variable);

// The command lines with which a user cancels the job, and follows it.
std::string ScancelLine(const SlurmJobId& id);
std::string FollowLine(const SlurmJobId& id);

// --- jobs ---

// A job as `scontrol show job` describes it.
struct SlurmJob {
  // The job's number, or for a task of an array the task's: "12", "12_1".
  std::string number;
  // The object stands for several tasks of an array.
  bool array = false;
  std::string name;
  // "PENDING", "RUNNING", "COMPLETING", "FAILED", ...
  std::string state;
  // Why the job waits, or why it failed. Empty: neither.
  std::string reason;
  // The exit code and signal of the batch script.
  int exit_code = 0;
  int exit_signal = 0;
  // "node[1-2]"; empty while it has no nodes.
  std::string nodes;
  // Absolute paths; may be empty.
  std::string script;
  std::string standard_output;
  std::string standard_error;
  // When its batch script was started last.
  absl::Time started = absl::InfiniteFuture();
};

// NOT_FOUND: Slurm does not know the job, or no longer; UNAVAILABLE: it does not answer.
absl::StatusOr<SlurmJob> ShowJob(const SlurmJobId& id);

// Parses the output of `scontrol show job ID` with SLURM_TIME_FORMAT "%s". INVALID_ARGUMENT: the
// text is not such output.
absl::StatusOr<SlurmJob> ParseSlurmJob(absl::string_view text);

// Whether the job will not run again.
bool HasEnded(const SlurmJob& job);

// The job's end as an exit status of `cadre run`, if only Slurm knows how it ended.
int ExitStatusOf(const SlurmJob& job);

// For users: "is pending: Resources", "runs on node[1-2]", "ended: TIMEOUT".
std::string StateText(const SlurmJob& job);

// --- nodes ---

// The address of a node whose name does not resolve (nodes of a cloud, and nodes to which
// slurm.conf gives a NodeAddr): from the aliases, or else from scontrol. Empty: neither knows it.
std::string SlurmNodeAddress(absl::string_view aliases, const std::string& node);

// Looks in SLURM_NODE_ALIASES, "ec0:10.0.0.1:host0,ec1:[fd00::1]:host1". Empty: the node is not in
// it.
std::string AddressInAliases(absl::string_view aliases, absl::string_view node);

// Looks in the output of `scontrol show node NODE`. Empty: it has no address but the node's name.
std::string AddressInShownNode(absl::string_view text, absl::string_view node);

// --- running a command ---

struct ProgramOutput {
  // As in a shell: 128 + signal if the program was killed.
  int status = 0;
  std::string standard_output;
  std::string standard_error;
};

// Waits for the program, which has no standard input.
//   NOT_FOUND          there is no such program on PATH
//   DEADLINE_EXCEEDED  it did not end within `timeout`, and was killed
absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& argv,
                                         absl::Duration timeout);

// Standard error, as one line of at most 1 KiB.
std::string ErrorLine(const ProgramOutput& output);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SLURM_COMMANDS_H_
