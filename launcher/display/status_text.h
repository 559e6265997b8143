// Text for users about jobs that run: a job in a few lines, the table of jobs, a cluster's nodes
// and queue, and the stacks of ranks. Pure; an object is used by one thread.
#ifndef CADRE_LAUNCHER_DISPLAY_STATUS_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_STATUS_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// --- one job ---

// The job's progress: "step 418 (rank 3; others up to 420) | 1234 samples/s | loss 0.2500", and
// "step 418 | no step for 25s" if the last step is long ago.
std::string ProgressText(const v1::JobProgress& progress);

// The block at the bottom of a terminal: at most four lines without '\n', none wider than `width`.
// `nodes` is what the job requested, `here` the reports of this node's workers, which are newer
// than the server's.
std::vector<std::string> StatusBlock(const v1::JobStatus& status,
                                     const std::vector<v1::Progress>& here,
                                     const v1::NodeRange& nodes, size_t width, bool color);

// Estimates the time that a job takes, from its steps since this process saw the first one.
class Pace {
 public:
  // "420 of 1000 steps | 12:31 gone, 17:13 left | lr 0.001"; unknown parts are omitted, and the
  // text may be empty.
  std::string Text(const v1::JobStatus& status, const std::vector<v1::Progress>& here,
                   MonoTime now);

 private:
  uint64_t generation_ = 0;
  uint64_t first_step_ = 0;
  MonoTime first_at_;
  MonoTime began_;
  bool has_begun_ = false;
};

// Lines for a pipe: one whenever something that matters to the user has changed.
class StatusLines {
 public:
  // Lines without '\n'.
  std::vector<std::string> Update(const v1::JobStatus& status);

 private:
  // The newest generation, or the number of restarts, about which a line was returned.
  uint64_t formed_ = 0;
  uint64_t running_ = 0;
  uint64_t stopping_ = 0;
  uint64_t ended_ = 0;
  uint32_t restarts_ = 0;
  bool said_waiting_ = false;
  bool said_queued_ = false;
  bool said_stall_ = false;
};

// The number of nodes that have joined, also if the status does not name them.
uint32_t NodesIn(const v1::JobStatus& status);

// The job in lines of one property each: its id, its user, when it was submitted, began and ended
// (in `zone`), how long it has run and may run, how far it is, and why it waits or ended. What it
// does not have, or what is not known, has no line.
std::string JobText(const v1::JobStatus& job, absl::Time now, absl::TimeZone zone);

// Lines about a submitted job that waits in the queue, or is an element of an array: which element
// it is, whether it is held, what it depends on, and when it may and is expected to begin (in
// `zone`). Empty: there is nothing to say.
std::string QueueText(const v1::JobStatus& job, absl::Time now, absl::TimeZone zone);

// A table of the job's nodes and their ranks.
std::string NodesTable(const v1::JobStatus& job);

// "avoids n0: WHY" for each node that the job avoids, except nodes on which it runs nevertheless
// because it could not run without them.
std::vector<std::string> AvoidedNodes(const v1::JobStatus& job);
// The same as one text with a line for each.
std::string AvoidedText(const v1::JobStatus& job);

// --- a server's jobs ---

// The length, in bytes, to which the table and JobText() cut the reason why a job waits or ended;
// `cadre why` shows all of it.
inline constexpr size_t kReasonBytes = 80;
inline constexpr size_t kLongReasonBytes = 400;

// A table with a line for each job: first the jobs that have nodes, the newest first; then those
// that wait in the queue, in its order; then those that have ended, the last one first. Elements of
// an array that wait have one line together.
std::string JobsTable(const std::vector<v1::JobStatus>& jobs, absl::Time now);

// --- a cluster's nodes and queue ---

// A table with a line for each node.
std::string ClusterNodesTable(const v1::ListNodesReply& nodes);

// A few lines, however large the cluster: its nodes, which of them are away or drained, what is in
// use, how many jobs wait, and what the first one waits for. Empty if there is no node.
std::string ClusterSummary(const v1::ListNodesReply& nodes, const std::vector<v1::JobStatus>& jobs);

// Lines about nodes for a pipe: first those that are not simply up, then each node that changes.
class ClusterLines {
 public:
  // Lines without '\n'.
  std::vector<std::string> Update(const v1::ListNodesReply& nodes);

 private:
  bool first_ = true;
  // The last line about each node, by its name.
  std::map<std::string, std::string> last_lines_;
};

// --- the stacks of a job's ranks ---

// Groups of ranks, the largest first, each with its calls, the most recent one first as
// faulthandler and py-spy print them; lines of the user's own program are marked with '>' and show
// their source. Then the nodes that did not answer. For a single rank its whole text follows.
std::string StacksText(const v1::GetStacksReply& reply);

// A shorter text: one line for each group.
std::string PlacesText(const v1::GetStacksReply& reply);

// "0-2,5".
std::string RanksText(const v1::StackGroup& group);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_STATUS_TEXT_H_
