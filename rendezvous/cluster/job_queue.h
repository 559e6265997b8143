// The queue: the submitted jobs that have not ended, the backoffs of jobs on nodes, and both as
// input of the scheduler. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_CLUSTER_JOB_QUEUE_H_
#define CADRE_RENDEZVOUS_CLUSTER_JOB_QUEUE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/cluster/eligibility.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/state/state.h"

namespace cadre::cluster {

// A queued job that cannot run on the nodes as they are, or may not begin yet, is set aside: it
// costs later passes nothing, however many of them there are, until the nodes or other jobs change.
class JobQueue {
 public:
  // The key by which the queue is sorted: negated priority, order of submission, name.
  using Key = std::tuple<int64_t, uint64_t, std::string>;

  // Called when the job has entered the queue, for the first time or again, or has begun.
  void Add(const state::Job& job);
  // Called when the job has ended.
  void Remove(const std::string& name);

  // `why` is the reason, or empty if it is put in words only when asked for. `backed_off`: the job
  // could run if some nodes were not excluded for a moment.
  void SetAside(const std::string& name, const std::string& why, bool backed_off);
  // The job may not begin now (eligibility.h), however many nodes are free.
  void SetNotEligible(const std::string& name, NotEligible why);
  // Why the job may not begin now; null if it may, as far as is known.
  const NotEligible* WhyNotEligible(const std::string& name) const;
  // When a job may become eligible by the passing of time alone; host time.
  MonoTime NextEligible() const {
    return eligible_at_.empty() ? MonoTime::Never() : eligible_at_.begin()->first;
  }
  // Called when one may be, or another job has begun or ended: jobs that were not are considered
  // again.
  void ReconsiderNotEligible();
  // The key of a queued job; null: it is not in the queue.
  const Key* KeyOf(const std::string& name) const;
  // The reason of a job that is set aside, or null if the job is not. Empty: it has not been put in
  // words yet.
  std::string* ReasonSetAside(const std::string& name);
  // Called when the nodes have changed: all jobs that were set aside are considered again.
  void ReconsiderAll();
  // Called when excluded nodes may be tried again: jobs that wait for that are considered again.
  void ReconsiderBackedOff();

  // The queued jobs that are not set aside.
  const std::set<Key>& waiting() const { return waiting_; }
  const std::set<std::string>& begun() const { return begun_; }

 private:
  struct Aside {
    std::string why;
    bool backed_off = false;
    std::optional<NotEligible> not_eligible = std::nullopt;
  };
  using AsideJobs = std::map<std::string, Aside>;
  // Returns the job that follows.
  AsideJobs::iterator EraseAside(AsideJobs::iterator job);
  // Takes the jobs for which `which` holds back among the waiting.
  template <typename Which>
  void Reconsider(const Which& which);

  std::map<std::string, Key> keys_;  // the keys of all queued jobs
  std::set<Key> waiting_;
  AsideJobs aside_;
  // When those of them become eligible for which that is known.
  std::set<std::pair<MonoTime, std::string>> eligible_at_;
  std::set<std::string> begun_;
};

// A backoff per job and node: if a launcher could not begin on a node for a reason that may pass,
// such as a full disk, its job is not placed there again for a while. Kept in memory only: a
// restarted server retries at once.
class StartBackoffs {
 public:
  // `submission` is the job's submission number, `failed_starts` how many of its launchers have
  // failed to begin so far. The backoff is 1 s and doubles with each of them, up to a minute.
  void Add(uint64_t submission, const std::string& node, uint32_t failed_starts, MonoTime now);
  // Removes backoffs that are over; returns false if none was.
  bool Expire(MonoTime now);
  MonoTime NextDeadline() const;
  // Returns the names of excluded nodes by submission number.
  std::map<uint64_t, std::set<std::string>> ByJob() const;

 private:
  std::set<std::tuple<MonoTime, uint64_t, std::string>> backoffs_;
};

// The state as input of the scheduler (schedule.h).
std::vector<ScheduleNode> NodesToSchedule(const state::State& state, const Agents& agents);

// The shares of nodes that are held, by job.
using Held = std::map<std::string, std::vector<HeldShare>>;
Held HeldShares(const state::State& state, const Agents& agents);

// Returns the scheduler's view of a job that is queued or has begun, without the shares it holds.
// `backed_off` has the excluded nodes of all jobs (StartBackoffs::ByJob). `stop_margin` is that of
// CoreConfig.
using BackedOffNodes = std::map<uint64_t, std::set<std::string>>;
ScheduleJob JobToSchedule(const state::Job& job, const BackedOffNodes& backed_off,
                          absl::Duration stop_margin);

// Returns the jobs that have begun and those that hold shares, even if they have ended; sorted by
// name.
std::vector<ScheduleJob> BegunJobs(const state::State& state, const std::set<std::string>& begun,
                                   Held held, const BackedOffNodes& backed_off,
                                   absl::Duration stop_margin);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_JOB_QUEUE_H_
