// A server's jobs and steps as Slurm's commands know them: with its states, reasons, times and
// lists of nodes. Pure.
#ifndef CADRE_LAUNCHER_SLURM_JOB_RECORD_H_
#define CADRE_LAUNCHER_SLURM_JOB_RECORD_H_

#include <algorithm>
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
  // Of an element of an array: the array's id, which is that of its first element, and the index;
  // and how many of the array's elements may run at the same time, 0: all. A step has those of its
  // batch job. 0: it is no element.
  uint64_t array = 0;
  uint32_t array_index = 0;
  uint32_t array_at_once = 0;
  // If the record stands for several elements that wait: their indices, as "3-9".
  std::string indices;
  // "PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL",
  // "OUT_OF_MEMORY", "PREEMPTED", "REQUEUED", "DEADLINE".
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
  // Of a job that waits: when it is expected to begin at the latest.
  absl::Time starts = absl::InfinitePast();
  // It does not begin before, and is cancelled after that.
  absl::Time not_before = absl::InfinitePast();
  absl::Time deadline = absl::InfinitePast();
  absl::Duration limit = absl::InfiniteDuration();
  int32_t priority = 0;
  uint32_t restarts = 0;
  int exit_code = 0;
  int exit_signal = 0;
  // Of a batch job: steps were begun in it.
  bool has_steps = false;
  // It has a script.
  bool batch = false;
  // It begins again on other nodes when it loses one.
  bool requeues = true;
  bool held = false;
  // The program with its first arguments; its directory; the patterns of its files.
  std::string command;
  std::string working_dir;
  std::string stdout_file;
  std::string stderr_file;
  // What it waits for, as --dependency has it; and the nodes and labels that it asks for, as
  // --nodelist, --exclude and --constraint have them.
  std::string dependency;
  std::string wanted_nodes;
  std::string excluded_nodes;
  std::string features;

  bool IsPending() const { return state == "PENDING"; }
  bool HasEnded() const;
  // "57", or "57.2" for a step; of an element of an array "57_3" and "57_3.2", and of several that
  // wait "57_[3-9%2]".
  std::string Id() const;
  // The same with the job's own id in place of "57_3".
  std::string RawId() const;
  // When it began, or is expected to.
  absl::Time Start() const { return IsPending() ? starts : began; }
  // From when on it could begin.
  absl::Time Eligible() const { return std::max(submitted, not_before); }
  // "n[1-3,5]"
  std::string NodeList() const;
  // How long it has run, until `now` or its end.
  absl::Duration Elapsed(absl::Time now) const;
};

// The records of submitted jobs, the oldest first, steps after their batch job. `nodes` is what the
// server says at the same time.
std::vector<JobRecord> RecordsOf(const std::vector<v1::JobStatus>& jobs,
                                 const v1::ListNodesReply& nodes);

// The elements of each array that wait as one record, in the place of the first of them. Those that
// are held, and those that have run before, are not put together with others.
std::vector<JobRecord> WithArraysCollapsed(std::vector<JobRecord> records);

// The files of the job's output, absolute and with %j, %A, %a, %x and %u replaced; other patterns
// stay. Empty: there is none, or it is not known.
std::string OutputFile(const JobRecord& job);
std::string ErrorFile(const JobRecord& job);

// "R" for "RUNNING".
std::string CompactState(absl::string_view state);
// The state for a name or a compact name, in any case. INVALID_ARGUMENT: there is no such state.
absl::StatusOr<std::string> ParseState(absl::string_view text);

// What -j, -u, -n, -t, -w and such options select. Of each kind that is not empty a record has to
// fit one.
struct JobSelection {
  // As WantedId::Text() has them: ids of jobs and of elements, each with all of its steps, or of
  // single steps.
  std::set<std::string> ids;
  std::set<std::string> users;
  std::set<std::string> names;
  std::set<std::string> states;
  std::set<std::string> nodes;
  std::set<std::string> partitions;

  bool Selects(const JobRecord& record) const;
};

// The id of a job, an array, an element or a step: "57", "57_3", "57.2", "57_3.batch".
struct WantedId {
  uint64_t job = 0;
  // Of an element of the array `job`.
  std::optional<uint32_t> index;
  // "2" or "batch"; empty: the whole job.
  std::string step;

  std::string Text() const;
  // Whether the record is the job, one of the array's elements, or the element, or of these a step.
  bool MeansJobOf(const JobRecord& record) const;
};
// The ids in a list with commas, as "57,58_[1-3,7],59.0". INVALID_ARGUMENT: one of them is none.
absl::StatusOr<std::vector<WantedId>> ParseWantedIds(absl::string_view list);

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
