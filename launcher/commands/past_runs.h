// The files that runs leave in log directories: read by commands that call no server, and written
// while a run continues. Blocks on the file system.
#ifndef CADRE_LAUNCHER_COMMANDS_PAST_RUNS_H_
#define CADRE_LAUNCHER_COMMANDS_PAST_RUNS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/threads/file_thread.h"
#include "base/threads/repeating_thread.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "rendezvous/host/core_thread.h"

namespace cadre::launcher {

// --- log directories ---

// The number of log directories that are remembered in the user's home.
inline constexpr size_t kRememberedDirectories = 16;

// Remembers the directory as the newest. Errors of writing are ignored.
void RememberLogDirectory(const std::string& log_dir);
// ./logs, then the remembered directories, the newest first; only those that exist.
std::vector<std::string> KnownLogDirectories();

// --- the runs in them ---

struct PastRun {
  std::string job;
  // As in v1::JobStatus; empty: the run never reached a server.
  std::string run;
  std::string log_dir;
  // Numbers begin at 1 with the oldest run.
  size_t number = 0;
  // The pid of its launcher if that is suspended on this machine; else 0.
  pid_t suspended = 0;
};

// The runs of this job, the oldest first; if the name is empty, those of all jobs, by name.
// Directories that cannot be read are left out, each with a line in `left_out` if that is given.
std::vector<PastRun> RunsIn(const std::string& log_dir, const std::string& job,
                            std::vector<std::string>* left_out = nullptr);
// Sorts by when the runs began, the newest first, then by the job.
void SortNewestFirst(std::vector<PastRun>* runs);

// Finds the run that a user means: empty for the newest, "previous" for the one before it, a
// number, or a prefix of its start time, written as "2026-11-28 09:19:54" in `zone` or as in the
// run's name.
absl::StatusOr<PastRun> ChooseRun(const std::vector<PastRun>& runs, const std::string& which,
                                  absl::TimeZone zone);

// "2026-11-28 09:19:54"; "-" if the time is not known.
std::string BeganText(const PastRun& run, absl::TimeZone zone);

// Reads the verdict that a run left in its directory.
absl::StatusOr<v1::Verdict> ReadVerdict(const std::string& directory);

// The use of the run's nodes; empty if it was not recorded.
v1::JobUsage UsageOf(const PastRun& run);

// The status from the run's files. Without a verdict (the run continues, or its launcher was
// killed) the phase is not known, and the generations are those of its history, or those that have
// directories.
absl::StatusOr<v1::JobStatus> StatusOf(const PastRun& run);

// The path of the log file that is requested.
std::string LogPathOf(const PastRun& run, const v1::ReadLogRequest& request);
// Reads a log as a server does, with the same meaning of tail and offset. NOT_FOUND: the rank's
// files are not on this machine.
absl::StatusOr<v1::ReadLogReply> ReadLogOf(const PastRun& run, const v1::ReadLogRequest& request);

// Tells the user how to resume a run whose launcher is suspended.
std::string SuspendedText(const PastRun& run);

// The number of runs that are shown unless the user asks for all.
inline constexpr size_t kRunsShown = 20;

// A table of the first `most` runs, in their order: number, start time and outcome. A last line
// counts the others. A run whose files cannot be read is omitted, with a line in `left_out`.
std::string RunsTable(const std::vector<PastRun>& runs, size_t most, absl::TimeZone zone,
                      std::vector<std::string>* left_out);

// --- while a run continues ---

inline constexpr absl::Duration kHistoryInterval = absl::Seconds(15);

// Writes what is known of a run to its log directory while it runs, because a launcher that is
// killed leaves neither a verdict nor a timeline. The files are limited in size like the server's
// own history. Has a thread of its own.
//
//   history.json   the timeline so far; removed once there is a verdict, because the agent writes
//                  timeline.json with that
//   usage.json     how busy the nodes were
class RunHistory {
 public:
  using Serving = std::function<absl::StatusOr<std::shared_ptr<host::CoreThread>>()>;

  // `serving` returns the core that has the job. A file that cannot be written is skipped.
  RunHistory(std::string log_dir, std::string job, Serving serving,
             absl::Duration interval = kHistoryInterval);
  // Writes the last state, unless the file system does not answer.
  ~RunHistory();

 private:
  void Write();

  const std::string log_dir_;
  const std::string job_;
  const Serving serving_;
  FileThread files_{{}};
  std::optional<RepeatingThread> thread_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_PAST_RUNS_H_
