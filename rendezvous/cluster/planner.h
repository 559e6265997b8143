// One pass over the queue: what PlaceJobs (schedule.h) keeps while it decides. For the files of
// schedule.h alone. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_CLUSTER_PLANNER_H_
#define CADRE_RENDEZVOUS_CLUSTER_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "rendezvous/cluster/schedule.h"

namespace cadre::cluster {

struct Room {
  int64_t cpus = 0;
  int64_t gpus = 0;
  bool Holds(const Share& share) const { return cpus >= share.cpus && gpus >= share.gpus; }
  void Add(const Share& share, int sign) {
    cpus += sign * int64_t{share.cpus};
    gpus += sign * int64_t{share.gpus};
  }
};
// By node.
using Rooms = std::vector<Room>;

class Planner {
 public:
  Planner(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
          MonoTime now);
  Schedule Run();

 private:
  // A job as it is and as it becomes in this pass.
  struct Plan {
    const ScheduleJob* job = nullptr;
    std::vector<HeldShare> held;
    uint32_t active = 0;  // held, without ending ones
    uint32_t least = 0;
    uint32_t unit = 1;
    bool placed_now = false;
    // Stays off the nodes that it avoids; not where it could not run without them.
    bool avoids = true;
    uint32_t lacks() const { return active < least ? least - active : 0; }
  };
  struct Need {
    size_t node;
    Share share;
  };

  // planner.cc: rooms, and who gets which of them.
  //
  // What the job would take of the node, if it may use it at all and does not do so already.
  std::optional<Share> Usable(const Plan& plan, size_t node) const;
  std::vector<Need> Choose(const Plan& plan, const Rooms& rooms, size_t count) const;
  size_t Fitting(const Plan& plan, const Rooms& rooms) const;
  void Place(Plan* plan, const std::vector<Need>& needs, const std::string& reason);

  // schedule.cc: whose turn it is.
  std::vector<Plan*> Queue();
  bool Possible(Plan* plan);
  void Grow();

  // reservation.cc: what is kept for the head, and what others may take beside it.
  void BecomeHead(const Plan& plan);
  std::string MostFree(const Plan& head) const;
  bool ShrinkFor(const Plan& head);
  void Reserve(const std::vector<Need>& needs);
  bool Backfill(Plan* plan);

  const std::vector<ScheduleNode>& nodes_;
  const MonoTime now_;
  std::map<std::string, size_t> index_;
  std::vector<Plan> plans_;
  Rooms whole_;   // of open nodes, once all that can end has ended
  Rooms free_;    // now
  Rooms coming_;  // and once what has been taken back is free
  // With a head: what others may take for longer than until `head_at_`.
  const Plan* head_ = nullptr;
  MonoTime head_at_ = MonoTime::Never();
  Rooms beside_;
  Schedule schedule_;
};

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_PLANNER_H_
