// What runs have left in log directories, for commands that ask no server. Blocks on the file
// system.
#ifndef CADRE_LAUNCHER_COMMANDS_PAST_RUNS_H_
#define CADRE_LAUNCHER_COMMANDS_PAST_RUNS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// Runs have their log directory remembered in the user's home, so many of them.
inline constexpr size_t kRememberedDirectories = 16;

// The directory is the newest of those from now on. What cannot be written is not remembered.
void RememberLogDirectory(const std::string& log_dir);
// ./logs, then the remembered ones, the newest first; those that are there.
std::vector<std::string> KnownLogDirectories();

struct PastRun {
  std::string job;
  // As v1::JobStatus has it; empty: no server ever knew of it.
  std::string run;
  std::string log_dir;
  // From 1 on, the oldest first.
  size_t number = 0;
  // Of its launcher, where that is suspended on this machine.
  pid_t suspended = 0;
};

// Of this job, the oldest first; of all jobs where the name is empty, by name. What cannot be read
// is left out; with `left_out` a line says so of each directory.
std::vector<PastRun> RunsIn(const std::string& log_dir, const std::string& job,
                            std::vector<std::string>* left_out = nullptr);
// The newest first. Of one of which it is not known when it began, the name decides.
void SortNewestFirst(std::vector<PastRun>* runs);

// The one that a user means: empty the newest, "previous" the one before it, a number, or the
// beginning of when it began: of "2026-11-28 09:19:54" as the clock on the wall said in `zone`, or
// of the run's own name.
absl::StatusOr<PastRun> ChooseRun(const std::vector<PastRun>& runs, const std::string& which,
                                  absl::TimeZone zone);

// "2026-11-28 09:19:54"; "-": not known.
std::string BeganText(const PastRun& run, absl::TimeZone zone);

// The verdict that a run left in its directory.
absl::StatusOr<v1::Verdict> ReadVerdict(const std::string& directory);

// How busy its nodes were; nothing where that was not kept.
v1::JobUsage UsageOf(const PastRun& run);

// What its files say. Without a verdict, of a run that goes on or whose launcher was killed, the
// phase is not known, and its generations are those of its history, or of which there are
// directories.
absl::StatusOr<v1::JobStatus> StatusOf(const PastRun& run);

// The file that the request is about.
std::string LogPathOf(const PastRun& run, const v1::ReadLogRequest& request);
// As a server does it; tail and offset as there. NOT_FOUND: the rank's files are not on this
// machine.
absl::StatusOr<v1::ReadLogReply> ReadLogOf(const PastRun& run, const v1::ReadLogRequest& request);

// How to let a run go on whose launcher is suspended.
std::string SuspendedText(const PastRun& run);

// So many runs are shown unless a user asks for all.
inline constexpr size_t kRunsShown = 20;

// A table of the first `most` runs, in their order: number, when, how it ended; the others are
// counted below it. One whose files cannot be read is left out, with a line in `left_out`.
std::string RunsTable(const std::vector<PastRun>& runs, size_t most, absl::TimeZone zone,
                      std::vector<std::string>* left_out);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_PAST_RUNS_H_
