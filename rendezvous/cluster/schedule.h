// The scheduler: which queued jobs get which nodes of a cluster, which running jobs give some back,
// and what the others wait for. A decision is a value with its reasons. Pure.
//
// Order: priority, then age. A job gets all the nodes of its smallest size at once or none (gang).
// The first job that does not fit is the head: nodes are reserved for it, elastic jobs that have
// more than their smallest size give up what it lacks, and jobs behind it are placed only if that
// cannot delay it (EASY backfill, as Slurm's sched/backfill does with one reservation). When no job
// waits, elastic jobs get the nodes that are left.
#ifndef CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_H_
#define CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "proto/spec.pb.h"

namespace cadre::cluster {

// How many runnable jobs of the queue one pass looks at, since it costs queued jobs times nodes.
constexpr size_t kQueueDepth = 500;
// The reason that is shown for jobs behind them.
extern const char kBehindManyOthers[];

// The most CPUs of one node.
constexpr uint32_t kMaxCpusPerNode = 65536;

// The resources that a job takes of one node.
struct Share {
  uint32_t workers = 0;
  uint32_t cpus = 0;
  uint32_t gpus = 0;    // whole GPUs
  uint64_t memory = 0;  // bytes; 0 if the job does not say how much it needs
};

struct ScheduleNode {
  std::string name;
  // If set, only jobs of this user run here; if empty, jobs of any user but root.
  std::string user;
  uint32_t cpus = 0;
  uint32_t gpus = 0;
  uint64_t memory = 0;  // bytes; 0 if it is not known, and then it is not counted
  std::map<std::string, std::string> labels;
  // Its agent is not too old for batch jobs.
  bool runs_batch_jobs = true;
  // Why the node takes no new work, as shown to people ("drained", "away"); empty if it does. What
  // runs on a closed node continues.
  std::string closed;

  friend bool operator==(const ScheduleNode& a, const ScheduleNode& b) {
    return std::tie(a.name, a.user, a.cpus, a.gpus, a.memory, a.labels, a.runs_batch_jobs,
                    a.closed) == std::tie(b.name, b.user, b.cpus, b.gpus, b.memory, b.labels,
                                          b.runs_batch_jobs, b.closed);
  }
  friend bool operator!=(const ScheduleNode& a, const ScheduleNode& b) { return !(a == b); }
};

struct HeldShare {
  std::string node;
  Share share;
  // The share was taken back, and is not free yet.
  bool ending = false;
  // A process there could not be killed, so nothing is known of when the share will be free.
  bool unkillable = false;

  friend bool operator==(const HeldShare& a, const HeldShare& b) {
    return std::tie(a.node, a.share.cpus, a.share.gpus, a.share.memory, a.ending, a.unkillable) ==
           std::tie(b.node, b.share.cpus, b.share.gpus, b.share.memory, b.ending, b.unkillable);
  }
  friend bool operator!=(const HeldShare& a, const HeldShare& b) { return !(a == b); }
};

struct ScheduleJob {
  std::string name;
  std::string user;
  int32_t priority = 0;  // higher first
  uint64_t order = 0;    // then lower first
  // The range of nodes; 0..0 if the job has ended and what it holds is ending.
  uint32_t min = 1;
  uint32_t max = 1;
  uint32_t unit = 1;
  // A batch job, which runs only where the agent knows such jobs.
  bool batch = false;
  // Whether nodes may be added while it runs.
  bool may_grow = true;
  v1::WorkersPerNode workers;
  v1::Resources resources;
  // Names of labels, as in v1::Placement.
  std::string spread_over;
  std::string pack;
  // Nodes that must be among the job's, and nodes that must not.
  std::set<std::string> nodes;
  std::set<std::string> exclude;
  // What each of its nodes must have, as alternatives: "key=value", the key or the value of a
  // label.
  std::vector<std::vector<std::string>> labels;
  std::vector<HeldShare> held;
  // `avoid`: nodes that it gets only if it could not run without them. `unfit`: nodes that it never
  // gets.
  std::set<std::string> avoid;
  std::set<std::string> unfit;
  // Nodes that it does not get while its backoff there runs (StartBackoffs).
  std::set<std::string> backed_off;
  // The longest time for which it holds nodes once placed, and when that ends if it is placed.
  absl::Duration limit = absl::InfiniteDuration();
  MonoTime ends = MonoTime::Never();
};

struct Placed {
  std::string job;
  std::string node;
  Share share;
  std::string reason;
};

struct Withdrawn {
  std::string job;
  std::string node;
  std::string reason;
};

struct Waiting {
  // The reason, to follow "waits for": "2 nodes of 4 CPUs: 1 is free".
  std::string reason;
  // When it is placed at the latest, unless jobs of higher priority come; Never if unknown.
  MonoTime until = MonoTime::Never();
  // It waits for nodes, rather than for jobs that are before it.
  bool first = false;
};

struct Schedule {
  std::vector<Placed> place;
  std::vector<Withdrawn> withdraw;
  // The jobs that do not have their smallest size now.
  std::map<std::string, Waiting> waiting;
  // The waiting jobs that could not run on these nodes even if nothing else ran.
  std::set<std::string> impossible;
  // Those of the impossible jobs that have failed to begin on some nodes and could not run on all
  // the others together, whatever becomes free; with the reason.
  std::map<std::string, std::string> hopeless;
  // The first waiting job that could be placed at some time; empty if there is none.
  std::string head;
};

// Node names must be unique, and so must job names. A job that holds fewer nodes than its smallest
// size, not counting ending ones, is queued for what it lacks. `now` is host time.
Schedule PlaceJobs(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
                   MonoTime now);

// --- whether a job can run on a node, whatever else runs there ---

// Returns what the job takes of an empty node, or nothing if the node is too small for a worker. A
// worker takes one CPU unless the job asks for more. A job that says how much memory a worker needs
// also takes that of its launcher (rpc/node_memory.h); any other takes none.
std::optional<Share> ShareOf(const ScheduleJob& job, const ScheduleNode& node);

// Returns the smallest number of nodes that the job runs on.
uint32_t LeastNodes(const ScheduleJob& job);

// Whether the node is one that the job may have by its spec: not excluded, and with the labels that
// it asks for.
bool IsWanted(const ScheduleJob& job, const ScheduleNode& node);

// Whether the job is barred from the node for good: the node is for other users, does not run
// root's jobs, is not wanted, or the job could not begin there.
bool IsBarred(const ScheduleJob& job, const ScheduleNode& node);

// Returns "4 CPUs, 1 GPU and 9 GiB of memory", without what it has none of.
std::string ShareText(const Share& share);

// Returns what a job waits for that lacks so many nodes, of which only `fitting` exist: "1 node
// with 4 CPUs: 0 of 3 can take it; 2 are too small (the largest has 2 CPUs), n2 is drained".
std::string MissingText(const ScheduleJob& job, size_t lacks, size_t fitting,
                        const std::vector<ScheduleNode>& nodes);

// --- which nodes a job takes of those that have room ---

// A node with room for the job.
struct NodeCandidate {
  // The node's index. Of equally suitable nodes the lowest is chosen.
  size_t node = 0;
  // The node's value of the label by which the job is spread or packed; empty without such a label.
  std::string group;
  // What would be left free on the node.
  int64_t spare_gpus = 0;
  int64_t spare_cpus = 0;
  int64_t spare_memory = 0;
  // Whether the job asks for it by name: such nodes come first.
  bool named = false;
};

enum class NodeLayout {
  kTight,   // the nodes with least left over
  kSpread,  // as evenly over the groups as possible
  kPacked,  // from as few groups as possible
};

// Returns `count` of the candidates, or none if there are fewer. `held` are the groups of the nodes
// that the job has already.
std::vector<size_t> ChooseNodes(std::vector<NodeCandidate> candidates,
                                const std::vector<std::string>& held, NodeLayout layout,
                                size_t count);

// Counts the nodes on which a job could run if nothing else ran, for jobs that treat all nodes
// alike. Nodes with the same user and size count as one shape, so that this costs as much for a
// thousand nodes as for one of each kind.
class NodeShapes {
 public:
  // `unkillable` are shares that stay taken because processes there could not be killed.
  NodeShapes(const std::vector<ScheduleNode>& nodes, const std::vector<HeldShare>& unkillable);

  // Whether the job holds no nodes, asks for none, and excludes none.
  static bool TreatsAllAlike(const ScheduleJob& job) {
    return job.held.empty() && job.avoid.empty() && job.unfit.empty() && job.backed_off.empty() &&
           job.nodes.empty() && job.exclude.empty() && job.labels.empty();
  }
  // For a job that treats all nodes alike: on how many nodes it could run, and whether these are
  // enough.
  size_t Fitting(const ScheduleJob& job) const;
  bool CanRun(const ScheduleJob& job) const;

 private:
  // The user of a node, whether it runs batch jobs, its CPUs, GPUs and memory, and how much of the
  // last three can become free.
  using Shape =
      std::tuple<std::string, bool, uint32_t, uint32_t, uint64_t, int64_t, int64_t, int64_t>;
  // How many open nodes have each shape.
  std::map<Shape, size_t> shapes_;
};

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_H_
