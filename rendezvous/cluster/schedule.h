// Which of a cluster's queued jobs get which nodes, which running ones give some back, and what the
// others wait for. A decision is a value with its reasons. Pure.
//
// Order: priority, then age. A job gets all the nodes of its smallest size at once or none (gang).
// The first one that does not fit is the head: nodes are kept for it, elastic jobs that have more
// than their smallest size give up what it lacks, and those behind it are placed only where that
// cannot make it later (EASY backfill, as Slurm's sched/backfill does with one reservation). What
// is left when nobody waits goes to elastic jobs.
#ifndef CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_H_
#define CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "proto/spec.pb.h"

namespace cadre::cluster {

// Of a longer queue only the first so many are looked at that could run: a pass costs queued jobs
// times nodes.
constexpr size_t kQueueDepth = 500;
// What those behind them wait for.
extern const char kBehindManyOthers[];

// What a job takes of one node, or a node has.
struct Share {
  uint32_t workers = 0;
  uint32_t cpus = 0;
  uint32_t gpus = 0;  // whole ones
};

struct ScheduleNode {
  std::string name;
  // Only jobs of this user run here; empty: of anybody but root.
  std::string user;
  uint32_t cpus = 0;
  uint32_t gpus = 0;
  std::map<std::string, std::string> labels;
  // Why it takes nothing new, as people are told: "drained", "away". Empty: it does. What a closed
  // one runs goes on.
  std::string closed;

  friend bool operator==(const ScheduleNode& a, const ScheduleNode& b) {
    return std::tie(a.name, a.user, a.cpus, a.gpus, a.labels, a.closed) ==
           std::tie(b.name, b.user, b.cpus, b.gpus, b.labels, b.closed);
  }
  friend bool operator!=(const ScheduleNode& a, const ScheduleNode& b) { return !(a == b); }
};

struct HeldShare {
  std::string node;
  Share share;
  // Taken back, and not yet free.
  bool ending = false;
  // SIGKILL does not end what is left there: nobody knows when it will be free.
  bool remains = false;

  friend bool operator==(const HeldShare& a, const HeldShare& b) {
    return std::tie(a.node, a.share.cpus, a.share.gpus, a.ending, a.remains) ==
           std::tie(b.node, b.share.cpus, b.share.gpus, b.ending, b.remains);
  }
  friend bool operator!=(const HeldShare& a, const HeldShare& b) { return !(a == b); }
};

struct ScheduleJob {
  std::string name;
  std::string user;
  int32_t priority = 0;  // higher first
  uint64_t order = 0;    // then lower first
  // 0..0: it is over, and what it holds is ending.
  uint32_t min = 1;
  uint32_t max = 1;
  uint32_t unit = 1;
  // More nodes than it was placed with may be added while it runs.
  bool may_grow = true;
  v1::WorkersPerNode workers;
  v1::Resources resources;
  // Labels, as in v1::Placement.
  std::string spread_over;
  std::string pack;
  std::vector<HeldShare> held;
  // Nodes that it gets only where it could not run without them, and those that it never gets.
  std::set<std::string> avoid;
  std::set<std::string> unfit;
  // Those that it does not get for a moment.
  std::set<std::string> resting;
  // How long it holds nodes at most once it is placed, and until when now that it is.
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
  // "2 nodes of 4 CPUs: 1 is free", to follow "waits for".
  std::string reason;
  // When it is placed at the latest, if nothing of higher priority comes; Never: nobody knows.
  MonoTime until = MonoTime::Never();
};

struct Schedule {
  std::vector<Placed> place;
  std::vector<Withdrawn> withdraw;
  // By job: all that do not have their smallest size now.
  std::map<std::string, Waiting> waiting;
  // Those of them that could not run though nothing else did, as the nodes are.
  std::set<std::string> impossible;
  // Those of them that have tried nodes in vain and could not run on all that are left, whatever
  // becomes free, and why.
  std::map<std::string, std::string> hopeless;
  // The first of those that could be placed one day; empty: there is none.
  std::string head;
};

// Node names, and job names, are unique. A job that holds fewer nodes than its smallest size,
// ending ones not counted, is in the queue for what it lacks.
Schedule PlaceJobs(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
                   MonoTime now);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_SCHEDULE_H_
