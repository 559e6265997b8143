// The submitted jobs that have not ended: those that wait in the queue, in its order, and those
// that have begun. A queued job that cannot run on the nodes as they are is set aside: it costs
// later passes nothing, however many of them there are, until the nodes change. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_CLUSTER_JOB_QUEUE_H_
#define CADRE_RENDEZVOUS_CLUSTER_JOB_QUEUE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "rendezvous/state/state.h"

namespace cadre::cluster {

class JobQueue {
 public:
  // Priority (negated), order of submission, name.
  using Key = std::tuple<int64_t, uint64_t, std::string>;

  // The job is in the queue, for the first time or again; or it has begun.
  void Add(const state::Job& job);
  // It has ended.
  void Remove(const std::string& name);

  // `why`: in words, where they are known already. `rests`: it could run, were it not that nodes
  // are not tried for a moment.
  void SetAside(const std::string& name, const std::string& why, bool rests);
  // Null: it is not in the queue.
  const Key* KeyOf(const std::string& name) const;
  // Of a job that is set aside; else null. Empty: nobody has put it in words yet.
  std::string* WhyAside(const std::string& name);
  // The nodes have changed: all that were set aside may be able to run.
  void JudgeAllAnew();
  // Nodes are tried again.
  void JudgeRestingAnew();

  // Those that wait and are not set aside.
  const std::set<Key>& waiting() const { return waiting_; }
  const std::set<std::string>& begun() const { return begun_; }

 private:
  struct Aside {
    std::string why;
    bool rests = false;
  };
  std::map<std::string, Key> keys_;  // of all queued
  std::set<Key> waiting_;
  std::map<std::string, Aside> aside_;
  std::set<std::string> begun_;
};

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_JOB_QUEUE_H_
