// A server's jobs and steps as Slurm's commands know them: with its states, reasons, times and
// lists of nodes. Pure.
#ifndef CADRE_LAUNCHER_SLURM_JOB_RECORD_H_
#define CADRE_LAUNCHER_SLURM_JOB_RECORD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// All nodes of a cluster are one partition.
inline constexpr char kPartition[] = "all";

struct JobRecord {
  // Of a step that of its batch job.
  uint64_t id = 0;
  std::optional<uint32_t> step;
  // The id under which the server knows it; of a step its own one.
  uint64_t server_id = 0;
  std::string name;
  std::string user;
  // "PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL",
  // "OUT_OF_MEMORY", "PREEMPTED".
  std::string state;
  // Why it waits or failed, in one of Slurm's words; "None": neither.
  std::string reason = "None";
  // The same in words of Cadre; may be empty.
  std::string reason_text;
  // The first one is first. Empty: it has none, or they are not known any more.
  std::vector<std::string> nodes;
  uint32_t node_count = 0;
  uint32_t tasks = 0;
  uint32_t cpus = 0;
  uint32_t gpus = 0;
  // In bytes; 0: it is not limited.
  uint64_t memory = 0;
  // InfinitePast: not yet, or not known.
  absl::Time submitted = absl::InfinitePast();
  absl::Time began = absl::InfinitePast();
  absl::Time ended = absl::InfinitePast();
  absl::Duration limit = absl::InfiniteDuration();
  int32_t priority = 0;
  uint32_t restarts = 0;
  int exit_code = 0;
  int exit_signal = 0;
  // Of a batch job: steps were begun in it.
  bool has_steps = false;

  bool IsPending() const { return state == "PENDING"; }
  bool HasEnded() const;
  // "57", or "57.2" for a step.
  std::string Id() const;
  // "n[1-3,5]"
  std::string NodeList() const;
  // How long it has run, until `now` or its end.
  absl::Duration Elapsed(absl::Time now) const;
};

// The records of submitted jobs, the oldest first, steps after their batch job. `nodes` is what the
// server says at the same time.
std::vector<JobRecord> RecordsOf(const std::vector<v1::JobStatus>& jobs,
                                 const v1::ListNodesReply& nodes);

// "R" for "RUNNING".
std::string CompactState(absl::string_view state);
// The state for a name or a compact name, in any case. INVALID_ARGUMENT: there is no such state.
absl::StatusOr<std::string> ParseState(absl::string_view text);

// What -j, -u, -n, -t, -w and such options select. Of each kind that is not empty a record has to
// fit one.
struct JobSelection {
  // Ids of jobs, each with all of its steps, or of single steps: "57", "57.2".
  std::set<std::string> ids;
  std::set<std::string> users;
  std::set<std::string> names;
  std::set<std::string> states;
  std::set<std::string> nodes;
  std::set<std::string> partitions;

  bool Selects(const JobRecord& record) const;
};

// The id of a job or of a step: "57", "57.2", "57.batch", "57_3". INVALID_ARGUMENT: it is none.
struct WantedId {
  uint64_t job = 0;
  // "2" or "batch"; empty: the whole job.
  std::string step;
};
absl::StatusOr<WantedId> ParseWantedId(absl::string_view text);

// The items of a list with commas, without empty ones.
std::vector<std::string> ItemsOf(absl::string_view list);

// --- times ---

// As SLURM_TIME_FORMAT says; empty: "2026-11-29T12:30:15". InfinitePast is `unknown`.
std::string TimeText(absl::Time time, absl::TimeZone zone, const std::string& format,
                     absl::string_view unknown);
// "1-02:03:04", "02:03:04": as sacct and scontrol print durations.
std::string LongTime(absl::Duration duration);
// "1-02:03:04", "2:03:04", "3:04": as squeue does.
std::string ShortTime(absl::Duration duration);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_JOB_RECORD_H_
