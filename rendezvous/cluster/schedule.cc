#include "rendezvous/cluster/schedule.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/cluster/node_choice.h"
#include "rendezvous/cluster/suitability.h"

namespace cadre::cluster {
namespace {

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

  // What the job would take of the node, if it may use it at all and does not do so already.
  std::optional<Share> Usable(const Plan& plan, size_t node) const;
  std::vector<Need> Choose(const Plan& plan, const Rooms& rooms, size_t count) const;
  size_t Fitting(const Plan& plan, const Rooms& rooms) const;
  std::vector<Plan*> Queue();
  bool Possible(Plan* plan);
  void Place(Plan* plan, const std::vector<Need>& needs, const std::string& reason);
  void BecomeHead(const Plan& plan);
  std::string MostFree(const Plan& head) const;
  bool ShrinkFor(const Plan& head);
  void Reserve(const std::vector<Need>& needs);
  bool Backfill(Plan* plan);
  void Grow();

  const std::vector<ScheduleNode>& nodes_;
  const MonoTime now_;
  std::map<std::string, size_t> index_;
  std::vector<Plan> plans_;
  Rooms whole_;   // of open nodes
  Rooms free_;    // now
  Rooms coming_;  // and once what has been taken back is free
  // With a head: what others may take for longer than until `head_at_`.
  const Plan* head_ = nullptr;
  MonoTime head_at_ = MonoTime::Never();
  Rooms beside_;
  Schedule schedule_;
};

Planner::Planner(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
                 MonoTime now)
    : nodes_(nodes), now_(now), whole_(nodes.size()) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    index_[nodes[i].name] = i;
    whole_[i] = {nodes[i].cpus, nodes[i].gpus};
  }
  free_ = coming_ = whole_;
  plans_.reserve(jobs.size());
  for (const ScheduleJob& job : jobs) {
    Plan& plan = plans_.emplace_back();
    plan.job = &job;
    plan.held = job.held;
    plan.least = LeastNodes(job);
    plan.unit = std::max<uint32_t>(job.unit, 1);
    for (const HeldShare& held : job.held) {
      plan.active += !held.ending;
      const auto node = index_.find(held.node);
      if (node == index_.end()) continue;
      free_[node->second].Add(held.share, -1);
      if (!held.ending) coming_[node->second].Add(held.share, -1);
    }
  }
}

std::optional<Share> Planner::Usable(const Plan& plan, size_t node) const {
  const ScheduleNode& candidate = nodes_[node];
  if (!candidate.closed.empty()) return std::nullopt;
  if (plan.avoids && plan.job->avoid.count(candidate.name) != 0) return std::nullopt;
  if (IsBarred(*plan.job, candidate)) return std::nullopt;
  for (const HeldShare& held : plan.held) {
    if (held.node == candidate.name) return std::nullopt;
  }
  return ShareOf(*plan.job, candidate);
}

std::vector<Planner::Need> Planner::Choose(const Plan& plan, const Rooms& rooms,
                                           size_t count) const {
  const ScheduleJob& job = *plan.job;
  const std::string& label = job.pack.empty() ? job.spread_over : job.pack;
  const auto group = [&](size_t node) {
    const auto found = nodes_[node].labels.find(label);
    return found == nodes_[node].labels.end() ? std::string() : found->second;
  };
  std::vector<NodeCandidate> candidates;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    // Every share has a CPU at least, and while jobs wait most nodes are full.
    if (rooms[i].cpus < 1) continue;
    const std::optional<Share> share = Usable(plan, i);
    if (!share.has_value() || !rooms[i].Holds(*share)) continue;
    candidates.push_back({i, group(i), rooms[i].gpus - share->gpus, rooms[i].cpus - share->cpus});
  }
  std::vector<std::string> held;
  for (const HeldShare& share : plan.held) {
    const auto node = index_.find(share.node);
    if (!share.ending && node != index_.end()) held.push_back(group(node->second));
  }
  const NodeLayout layout = label.empty()      ? NodeLayout::kTight
                            : job.pack.empty() ? NodeLayout::kSpread
                                               : NodeLayout::kPacked;
  std::vector<Need> needs;
  for (const size_t node : ChooseNodes(std::move(candidates), held, layout, count)) {
    needs.push_back({node, *ShareOf(job, nodes_[node])});
  }
  return needs;
}

size_t Planner::Fitting(const Plan& plan, const Rooms& rooms) const {
  size_t fitting = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::optional<Share> share = Usable(plan, i);
    fitting += share.has_value() && rooms[i].Holds(*share);
  }
  return fitting;
}

std::vector<Planner::Plan*> Planner::Queue() {
  std::vector<Plan*> queue;
  for (Plan& plan : plans_) {
    if (plan.lacks() > 0) queue.push_back(&plan);
  }
  std::sort(queue.begin(), queue.end(), [](const Plan* a, const Plan* b) {
    return std::make_tuple(-int64_t{a->job->priority}, a->job->order) <
           std::make_tuple(-int64_t{b->job->priority}, b->job->order);
  });
  return queue;
}

// Whether it fits when nothing else runs; if not it keeps nobody waiting.
bool Planner::Possible(Plan* plan) {
  const ScheduleJob& job = *plan->job;
  size_t fitting = Fitting(*plan, whole_);
  if (fitting < plan->lacks() && !job.avoid.empty()) {
    plan->avoids = false;
    fitting = Fitting(*plan, whole_);
  }
  if (fitting >= plan->lacks()) return true;
  std::string& why = schedule_.waiting[job.name].reason;
  why = MissingText(job, plan->lacks(), fitting, nodes_);
  if (job.unfit.empty()) return false;
  const size_t suitable = std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& node) {
    return !IsBarred(job, node) && ShareOf(job, node).has_value();
  });
  if (suitable < plan->least) schedule_.hopeless[job.name] = why;
  return false;
}

void Planner::Place(Plan* plan, const std::vector<Need>& needs, const std::string& reason) {
  for (const Need& need : needs) {
    free_[need.node].Add(need.share, -1);
    coming_[need.node].Add(need.share, -1);
    plan->held.push_back({nodes_[need.node].name, need.share, false});
    schedule_.place.push_back({plan->job->name, nodes_[need.node].name, need.share, reason});
  }
  plan->active += needs.size();
  plan->placed_now = true;
}

// Keeps what the head gets for it, as it will be at `head_at_`.
void Planner::Reserve(const std::vector<Need>& needs) {
  for (const Need& need : needs) beside_[need.node].Add(need.share, -1);
  // Free at that time is not yet free now.
  for (size_t i = 0; i < beside_.size(); ++i) {
    beside_[i].cpus = std::min(beside_[i].cpus, free_[i].cpus);
    beside_[i].gpus = std::min(beside_[i].gpus, free_[i].gpus);
  }
}

// " (another has 1 CPU)": of the nodes that have too little for it now the one that has most.
std::string Planner::MostFree(const Plan& head) const {
  Room most;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::optional<Share> share = Usable(head, i);
    if (!share.has_value() || free_[i].Holds(*share)) continue;
    const Room& room = free_[i];
    if (std::make_pair(room.gpus, room.cpus) > std::make_pair(most.gpus, most.cpus)) most = room;
  }
  if (most.cpus == 0) return "";
  return absl::StrCat(" (another has ",
                      ShareText({0, static_cast<uint32_t>(most.cpus),
                                 static_cast<uint32_t>(std::max<int64_t>(most.gpus, 0))}),
                      ")");
}

void Planner::BecomeHead(const Plan& head) {
  head_ = &head;
  schedule_.head = head.job->name;
  Waiting& waiting = schedule_.waiting[head.job->name];
  const size_t fitting = Fitting(head, free_);
  std::optional<Share> share;
  for (size_t i = 0; i < nodes_.size() && !share.has_value(); ++i) share = Usable(head, i);
  waiting.reason = absl::StrCat(
      Count(head.lacks(), head.held.empty() ? "node" : "more node"), " with ", ShareText(*share),
      " free: ", fitting, fitting == 1 ? " is" : " are", MostFree(head), ", and it is the next");
  if (ShrinkFor(head)) {
    waiting.reason += "; what it lacks is being given up";
    head_at_ = now_;
    beside_ = coming_;
    return Reserve(Choose(head, beside_, head.lacks()));
  }
  // Jobs end at their limits at the latest.
  std::vector<std::pair<MonoTime, const Plan*>> ends;
  for (const Plan& plan : plans_) {
    if (&plan == &head || plan.active == 0 || plan.job->limit == absl::InfiniteDuration()) continue;
    const MonoTime end = plan.job->held.empty() ? now_ + plan.job->limit : plan.job->ends;
    if (end != MonoTime::Never()) ends.push_back({std::max(end, now_), &plan});
  }
  std::sort(ends.begin(), ends.end());
  beside_ = coming_;
  for (const auto& [at, plan] : ends) {
    for (const HeldShare& held : plan->held) {
      const auto node = index_.find(held.node);
      if (!held.ending && node != index_.end()) beside_[node->second].Add(held.share, 1);
    }
    const std::vector<Need> needs = Choose(head, beside_, head.lacks());
    if (needs.empty()) continue;
    waiting.until = head_at_ = at;
    return Reserve(needs);
  }
  // Nobody knows when. Others get no node that the head could use, unless it still can.
  std::vector<Need> all;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    beside_[i] = coming_[i];
    const std::optional<Share> usable = Usable(head, i);
    if (!usable.has_value()) continue;
    if (beside_[i].Holds(*usable)) {
      all.push_back({i, *usable});
    } else {
      beside_[i] = Room();
    }
  }
  Reserve(all);
}

// Whether the head fits once elastic jobs have given up what they have more than they need. They
// give up no more than it takes, whole units, the least important job first.
bool Planner::ShrinkFor(const Plan& head) {
  if (!Choose(head, coming_, head.lacks()).empty()) return true;
  std::vector<Plan*> givers;
  for (Plan& plan : plans_) {
    if (&plan != &head && !plan.placed_now && plan.active >= plan.least + plan.unit) {
      givers.push_back(&plan);
    }
  }
  std::sort(givers.begin(), givers.end(), [](const Plan* a, const Plan* b) {
    return std::make_tuple(a->job->priority, -static_cast<int64_t>(a->job->order)) <
           std::make_tuple(b->job->priority, -static_cast<int64_t>(b->job->order));
  });
  using Unit = std::pair<Plan*, std::vector<size_t>>;  // of held
  std::vector<Unit> units;
  Rooms rooms = coming_;
  const auto give = [&](const Unit& unit, int sign) {
    for (const size_t at : unit.second) {
      const HeldShare& held = unit.first->held[at];
      const auto node = index_.find(held.node);
      if (node != index_.end()) rooms[node->second].Add(held.share, sign);
    }
  };
  bool fits = false;
  for (Plan* giver : givers) {
    // What the head can use first, of that what came last.
    std::vector<std::pair<bool, size_t>> order;
    for (size_t at = giver->held.size(); at-- > 0;) {
      if (giver->held[at].ending) continue;
      const auto node = index_.find(giver->held[at].node);
      order.push_back({node == index_.end() || !Usable(head, node->second).has_value(), at});
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    const size_t unit = giver->unit;
    const size_t surplus = (giver->active - giver->least) / unit * unit;
    for (size_t at = 0; at + unit <= surplus && !fits; at += unit) {
      Unit& next = units.emplace_back(giver, std::vector<size_t>());
      for (size_t i = at; i < at + unit; ++i) next.second.push_back(order[i].second);
      give(next, 1);
      fits = !Choose(head, rooms, head.lacks()).empty();
    }
    if (fits) break;
  }
  if (!fits) return false;
  for (const Unit& unit : units) {
    give(unit, -1);
    if (!Choose(head, rooms, head.lacks()).empty()) continue;  // not needed after all
    give(unit, 1);
    for (const size_t at : unit.second) {
      HeldShare& held = unit.first->held[at];
      held.ending = true;
      --unit.first->active;
      schedule_.withdraw.push_back(
          {unit.first->job->name, held.node, absl::StrCat("job ", head.job->name, " needs it")});
    }
  }
  coming_ = rooms;
  return true;
}

// Places a job that is not the head, if that cannot make the head later.
bool Planner::Backfill(Plan* plan) {
  const std::string reason = absl::StrCat("job ", schedule_.head, " is not delayed by it");
  if (head_at_ != MonoTime::Never() && now_ + plan->job->limit <= head_at_) {
    const std::vector<Need> needs = Choose(*plan, free_, plan->lacks());
    if (!needs.empty()) {
      Place(plan, needs, absl::StrCat(reason, ": it ends before"));
      for (size_t i = 0; i < beside_.size(); ++i) {
        beside_[i].cpus = std::min(beside_[i].cpus, free_[i].cpus);
        beside_[i].gpus = std::min(beside_[i].gpus, free_[i].gpus);
      }
      return true;
    }
  }
  const std::vector<Need> needs = Choose(*plan, beside_, plan->lacks());
  if (needs.empty()) return false;
  for (const Need& need : needs) beside_[need.node].Add(need.share, -1);
  Place(plan, needs, absl::StrCat(reason, ": it leaves what that needs"));
  return true;
}

// Nobody waits who could be placed.
void Planner::Grow() {
  std::vector<Plan*> growing;
  for (Plan& plan : plans_) {
    if (plan.active >= plan.least && (plan.job->may_grow || plan.placed_now)) {
      growing.push_back(&plan);
    }
  }
  std::sort(growing.begin(), growing.end(), [](const Plan* a, const Plan* b) {
    return std::make_tuple(-int64_t{a->job->priority}, a->job->order) <
           std::make_tuple(-int64_t{b->job->priority}, b->job->order);
  });
  for (Plan* plan : growing) {
    while (plan->active + plan->unit <= plan->job->max) {
      const std::vector<Need> needs = Choose(*plan, free_, plan->unit);
      if (needs.empty()) break;
      Place(plan, needs, "there is room, and nobody waits");
    }
  }
}

Schedule Planner::Run() {
  size_t before = 0, possible = 0;
  for (Plan* plan : Queue()) {
    Waiting waiting;
    if (++before > kQueueLength || possible == kQueueDepth) {
      waiting.reason = absl::StrCat("its turn: ", before - 1, " jobs are before it in the queue");
      schedule_.waiting[plan->job->name] = std::move(waiting);
      continue;
    }
    if (!Possible(plan)) continue;
    ++possible;
    if (head_ == nullptr) {
      const std::vector<Need> needs = Choose(*plan, free_, plan->lacks());
      if (!needs.empty()) {
        Place(plan, needs, "it is the next, and there is room");
      } else {
        BecomeHead(*plan);
      }
    } else if (!Backfill(plan)) {
      waiting.reason = absl::StrCat(
          "its turn: job ", schedule_.head, " is the next",
          Choose(*plan, free_, plan->lacks()).empty() ? "" : " and needs what is free");
      schedule_.waiting[plan->job->name] = std::move(waiting);
    }
  }
  if (head_ == nullptr) Grow();
  return std::move(schedule_);
}

}  // namespace

Schedule PlaceJobs(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
                   MonoTime now) {
  return Planner(nodes, jobs, now).Run();
}

}  // namespace cadre::cluster
