// One pass of the scheduler: which nodes suit a job, which of them it gets, and what is reserved
// for the head of the queue.
#include "rendezvous/cluster/schedule.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/text.h"
#include "rpc/node_memory.h"

namespace cadre::cluster {

const char kBehindManyOthers[] = "its turn: 500 jobs that could run are before it in the queue";
static_assert(kQueueDepth == 500);

namespace {

// No share has more memory (MemoryOf), and a node has a share for each CPU at most. So the memory
// of a node that does not say how much it has is enough for all of them.
constexpr uint64_t kMaxShareMemory = rpc::kMaxNodeMemory + 1;
constexpr int64_t kUncounted = INT64_MAX;
static_assert(kMaxShareMemory <= kUncounted / kMaxCpusPerNode);

struct Room {
  int64_t cpus = 0;
  int64_t gpus = 0;
  int64_t memory = 0;

  static Room Of(const ScheduleNode& node) {
    return {node.cpus, node.gpus,
            node.memory == 0 ? kUncounted : static_cast<int64_t>(node.memory)};
  }
  // An agent that came back may have less memory than its jobs were given; others that ask for none
  // still fit.
  bool Holds(const Share& share) const {
    return cpus >= share.cpus && gpus >= share.gpus &&
           (share.memory == 0 || memory >= static_cast<int64_t>(share.memory));
  }
  void Add(const Share& share, int sign) {
    cpus += sign * int64_t{share.cpus};
    gpus += sign * int64_t{share.gpus};
    memory += sign * static_cast<int64_t>(share.memory);
  }
  void LimitTo(const Room& other) {
    cpus = std::min(cpus, other.cpus);
    gpus = std::min(gpus, other.gpus);
    memory = std::min(memory, other.memory);
  }
};
// Indexed like the nodes.
using Rooms = std::vector<Room>;

// Returns "4 CPUs, 1 GPU and 9 GiB of memory", without GPUs if there are none.
std::string RoomText(uint64_t cpus, uint64_t gpus, std::optional<uint64_t> memory) {
  std::string text = Count(cpus, "CPU");
  if (gpus > 0) absl::StrAppend(&text, memory.has_value() ? ", " : " and ", Count(gpus, "GPU"));
  if (memory.has_value()) absl::StrAppend(&text, " and ", SizeText(*memory), " of memory");
  return text;
}

// The state of one pass over the queue, by which PlaceJobs decides.
class Planner {
 public:
  Planner(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
          MonoTime now);
  Schedule Run();

 private:
  // A job, and what becomes of it in this pass.
  struct Plan {
    const ScheduleJob* job = nullptr;
    std::vector<HeldShare> held;
    uint32_t active = 0;  // held, without ending ones
    uint32_t least = 0;
    uint32_t unit = 1;
    bool placed_now = false;
    // Whether the job stays off the nodes that it avoids; false if it could not run without them.
    bool avoids = true;
    uint32_t lacks() const { return active < least ? least - active : 0; }
  };
  struct Need {
    size_t node;
    Share share;
  };

  // Rooms, and which job gets which of them.
  //
  // Usable() returns what the job would take of the node; nothing if it must not use the node or
  // uses it already.
  std::optional<Share> Usable(const Plan& plan, size_t node) const;
  std::vector<Need> Choose(const Plan& plan, const Rooms& rooms, size_t count) const;
  size_t Fitting(const Plan& plan, const Rooms& rooms) const;
  // Whether the nodes that the job asks for by name are among those that it holds or could get.
  bool HasNamed(const Plan& plan, const std::vector<NodeCandidate>& candidates) const;
  void Place(Plan* plan, const std::vector<Need>& needs, const std::string& reason);

  // The order of the jobs.
  std::vector<Plan*> WaitingPlans();
  bool CanEverRun(Plan* plan);
  void Grow();

  // What is reserved for the head, and what others may take beside it.
  void ReserveForHead(const Plan& plan);
  std::string FreestNodeText(const Plan& head) const;
  bool ShrinkFor(const Plan& head);
  void Reserve(const std::vector<Need>& needs);
  bool Backfill(Plan* plan);

  const std::vector<ScheduleNode>& nodes_;
  const MonoTime now_;
  std::map<std::string, size_t> index_;
  std::vector<Plan> plans_;
  Rooms whole_;   // of all nodes, once all that can end has ended
  Rooms free_;    // free now
  Rooms coming_;  // free once what was taken back has ended
  // With a head: what others may take even if they run beyond `head_at_`.
  const Plan* head_ = nullptr;
  MonoTime head_at_ = MonoTime::Never();
  Rooms beside_;
  Schedule schedule_;
};

}  // namespace

std::vector<Planner::Plan*> Planner::WaitingPlans() {
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

// Whether the job fits if nothing else runs. If not, it keeps no other job waiting.
bool Planner::CanEverRun(Plan* plan) {
  const ScheduleJob& job = *plan->job;
  size_t fitting = Fitting(*plan, whole_);
  if (fitting < plan->lacks() && !job.avoid.empty()) {
    plan->avoids = false;
    fitting = Fitting(*plan, whole_);
  }
  if (fitting >= plan->lacks()) return true;
  std::string& why = schedule_.waiting[job.name].reason;
  why = MissingText(job, plan->lacks(), fitting, nodes_);
  schedule_.impossible.insert(job.name);
  if (job.unfit.empty()) return false;
  const size_t suitable = std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& node) {
    return !IsBarred(job, node) && ShareOf(job, node).has_value();
  });
  if (suitable < plan->least) schedule_.hopeless[job.name] = why;
  return false;
}

// Called when no job waits that could be placed.
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
      Place(plan, needs, "there is room, and no job waits");
    }
  }
}

Schedule Planner::Run() {
  size_t possible = 0;
  for (Plan* plan : WaitingPlans()) {
    Waiting waiting;
    if (possible == kQueueDepth) {
      waiting.reason = kBehindManyOthers;
      schedule_.waiting[plan->job->name] = std::move(waiting);
      continue;
    }
    if (!CanEverRun(plan)) continue;
    ++possible;
    if (head_ == nullptr) {
      const std::vector<Need> needs = Choose(*plan, free_, plan->lacks());
      if (!needs.empty()) {
        Place(plan, needs, "it is the next, and there is room");
      } else {
        ReserveForHead(*plan);
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

Schedule PlaceJobs(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
                   MonoTime now) {
  return Planner(nodes, jobs, now).Run();
}

Planner::Planner(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
                 MonoTime now)
    : nodes_(nodes), now_(now), whole_(nodes.size()) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    index_[nodes[i].name] = i;
    whole_[i] = Room::Of(nodes[i]);
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
      if (!held.ending || held.unkillable) coming_[node->second].Add(held.share, -1);
      if (held.unkillable) whole_[node->second].Add(held.share, -1);
    }
  }
}

std::optional<Share> Planner::Usable(const Plan& plan, size_t node) const {
  const ScheduleNode& candidate = nodes_[node];
  if (!candidate.closed.empty()) return std::nullopt;
  if (plan.avoids && plan.job->avoid.count(candidate.name) != 0) return std::nullopt;
  if (plan.job->backed_off.count(candidate.name) != 0) return std::nullopt;
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
    // A cheap test first: each share has at least one CPU, and while jobs wait most nodes are full.
    if (rooms[i].cpus < 1) continue;
    const std::optional<Share> share = Usable(plan, i);
    if (!share.has_value() || !rooms[i].Holds(*share)) continue;
    Room spare = rooms[i];
    spare.Add(*share, -1);
    const bool named = job.nodes.count(nodes_[i].name) != 0;
    candidates.push_back({i, group(i), spare.gpus, spare.cpus, spare.memory, named});
  }
  if (!HasNamed(plan, candidates)) return {};
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

bool Planner::HasNamed(const Plan& plan, const std::vector<NodeCandidate>& candidates) const {
  if (plan.job->nodes.empty() || plan.lacks() == 0) return true;
  const size_t held = std::count_if(plan.held.begin(), plan.held.end(), [&](const auto& held_one) {
    return !held_one.ending && plan.job->nodes.count(held_one.node) != 0;
  });
  const size_t named = std::count_if(candidates.begin(), candidates.end(),
                                     [](const NodeCandidate& one) { return one.named; });
  // A job that asks for more nodes than it has gets any of them.
  return named + held >= std::min<size_t>(plan.job->nodes.size(), plan.least);
}

size_t Planner::Fitting(const Plan& plan, const Rooms& rooms) const {
  size_t fitting = 0;
  std::vector<NodeCandidate> candidates;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::optional<Share> share = Usable(plan, i);
    if (!share.has_value() || !rooms[i].Holds(*share)) continue;
    ++fitting;
    if (plan.job->nodes.count(nodes_[i].name) == 0) continue;
    candidates.emplace_back();
    candidates.back().named = true;
  }
  return HasNamed(plan, candidates) ? fitting : 0;
}

void Planner::Place(Plan* plan, const std::vector<Need>& needs, const std::string& reason) {
  for (const Need& need : needs) {
    CADRE_CHECK(free_[need.node].Holds(need.share), "job ", plan->job->name,
                " was placed on a full node, ", nodes_[need.node].name);
    free_[need.node].Add(need.share, -1);
    coming_[need.node].Add(need.share, -1);
    plan->held.push_back({nodes_[need.node].name, need.share, false});
    schedule_.place.push_back({plan->job->name, nodes_[need.node].name, need.share, reason});
  }
  plan->active += needs.size();
  plan->placed_now = true;
}

// What is reserved for the head of the queue: the first job that does not fit.

// Reserves for the head the nodes that it gets at `head_at_`.
void Planner::Reserve(const std::vector<Need>& needs) {
  for (const Need& need : needs) beside_[need.node].Add(need.share, -1);
  // What will be free at that time is not necessarily free now.
  for (size_t i = 0; i < beside_.size(); ++i) beside_[i].LimitTo(free_[i]);
}

// Returns " (another has 1 CPU)": the freest of the nodes that have too little for the head now.
std::string Planner::FreestNodeText(const Plan& head) const {
  Room most;
  bool counts_memory = false;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::optional<Share> share = Usable(head, i);
    if (!share.has_value() || free_[i].Holds(*share)) continue;
    const Room& room = free_[i];
    if (std::make_tuple(room.gpus, room.cpus, room.memory) <=
        std::make_tuple(most.gpus, most.cpus, most.memory)) {
      continue;
    }
    most = room;
    counts_memory = share->memory > 0 && nodes_[i].memory > 0;
  }
  if (most.cpus == 0) return "";
  std::optional<uint64_t> memory;
  if (counts_memory) memory = static_cast<uint64_t>(std::max<int64_t>(most.memory, 0));
  return absl::StrCat(" (another has ",
                      RoomText(most.cpus, std::max<int64_t>(most.gpus, 0), memory), ")");
}

void Planner::ReserveForHead(const Plan& head) {
  head_ = &head;
  schedule_.head = head.job->name;
  Waiting& waiting = schedule_.waiting[head.job->name];
  waiting.first = true;
  const size_t fitting = Fitting(head, free_);
  std::optional<Share> share;
  for (size_t i = 0; i < nodes_.size() && !share.has_value(); ++i) share = Usable(head, i);
  CADRE_CHECK(share.has_value(), "no node is of use to ", head.job->name, ", which is possible");
  waiting.reason =
      absl::StrCat(Count(head.lacks(), head.held.empty() ? "node" : "more node"), " with ",
                   ShareText(*share), " free: ", fitting, fitting == 1 ? " is" : " are",
                   FreestNodeText(head), ", and it is the next");
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
  // It is unknown when the head fits. Others get a node that the head could use only if it still
  // could use that node then.
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

// Whether the head fits once elastic jobs have given up nodes beyond their smallest size. They give
// up no more than it takes, in whole units, the least important job first.
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
  using Unit = std::pair<Plan*, std::vector<size_t>>;  // indexes of held
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
    // Nodes that the head can use come first, and among them those that the job got last.
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

// Places a job behind the head, if that cannot delay the head.
bool Planner::Backfill(Plan* plan) {
  const std::string reason = absl::StrCat("job ", schedule_.head, " is not delayed by it");
  if (head_at_ != MonoTime::Never() && now_ + plan->job->limit <= head_at_) {
    const std::vector<Need> needs = Choose(*plan, free_, plan->lacks());
    if (!needs.empty()) {
      Place(plan, needs, absl::StrCat(reason, ": it ends before"));
      for (size_t i = 0; i < beside_.size(); ++i) beside_[i].LimitTo(free_[i]);
      return true;
    }
  }
  const std::vector<Need> needs = Choose(*plan, beside_, plan->lacks());
  if (needs.empty()) return false;
  for (const Need& need : needs) beside_[need.node].Add(need.share, -1);
  Place(plan, needs, absl::StrCat(reason, ": it leaves what that needs"));
  return true;
}

namespace {

uint64_t MemoryOf(const ScheduleJob& job, uint64_t workers) {
  return std::min(rpc::JobMemory(job.resources.memory_per_worker(), workers), kMaxShareMemory);
}

// Returns the least that a node must have.
Share LeastShare(const ScheduleJob& job) {
  const uint32_t cpus_each = std::max<uint32_t>(1, job.resources.cpus_per_worker());
  const uint32_t gpus_each = job.resources.gpus_per_worker();
  switch (job.workers.kind()) {
    case v1::WorkersPerNode::GPU:
      return {1, cpus_each, std::max<uint32_t>(1, gpus_each), MemoryOf(job, 1)};
    case v1::WorkersPerNode::CPU:
    case v1::WorkersPerNode::AUTO:
      return {1, cpus_each, gpus_each, MemoryOf(job, 1)};
    default: {
      const uint32_t workers = std::max<uint32_t>(1, job.workers.count());
      return {workers, workers * cpus_each, workers * gpus_each, MemoryOf(job, workers)};
    }
  }
}

// Returns what the job takes of an empty node that has enough memory.
std::optional<Share> ShareBesidesMemory(const ScheduleJob& job, const ScheduleNode& node) {
  const uint32_t gpus_each = job.resources.gpus_per_worker();
  const uint32_t cpus_each = std::max<uint32_t>(1, job.resources.cpus_per_worker());
  auto kind = job.workers.kind();
  if (kind == v1::WorkersPerNode::AUTO) {
    kind = node.gpus > 0 ? v1::WorkersPerNode::GPU : v1::WorkersPerNode::CPU;
  }
  uint64_t workers = std::max<uint32_t>(1, job.workers.count());
  uint64_t gpus = workers * gpus_each;
  if (kind == v1::WorkersPerNode::GPU) {
    workers = node.gpus / std::max<uint32_t>(1, gpus_each);
    gpus = workers * std::max<uint32_t>(1, gpus_each);
  } else if (kind == v1::WorkersPerNode::CPU) {
    workers = node.cpus / cpus_each;
    gpus = workers * gpus_each;
  }
  const uint64_t cpus = workers * cpus_each;
  if (workers == 0 || cpus > node.cpus || gpus > node.gpus) return std::nullopt;
  return Share{static_cast<uint32_t>(workers), static_cast<uint32_t>(cpus),
               static_cast<uint32_t>(gpus), MemoryOf(job, workers)};
}

bool HasMemoryFor(const ScheduleNode& node, const Share& share) {
  return node.memory == 0 || node.memory >= share.memory;
}

constexpr char kRoot[] = "root";

// Jobs of root run only on nodes whose agent names root.
bool IsForUser(const ScheduleNode& node, const std::string& user) {
  return node.user == user || (node.user.empty() && user != kRoot);
}

// `label`: "key=value", a key or a value.
bool HasLabel(const ScheduleNode& node, const std::string& label) {
  return std::any_of(node.labels.begin(), node.labels.end(), [&](const auto& one) {
    return label == one.first || label == one.second ||
           label == absl::StrCat(one.first, "=", one.second);
  });
}

struct Group {
  size_t size = 0;
  const std::string* first = nullptr;

  void Add(const ScheduleNode& node) {
    if (size++ == 0) first = &node.name;
  }
};

// Returns "n2 is drained" or "4 are drained".
std::string Are(const Group& nodes, const std::string& what) {
  return nodes.size == 1 ? absl::StrCat(*nodes.first, " is ", what)
                         : absl::StrCat(nodes.size, " are ", what);
}

// Returns why the job cannot have the nodes that it asks for by name: "n7 is drained"; empty if it
// can.
std::string UnavailableNames(const ScheduleJob& job, const std::vector<ScheduleNode>& nodes) {
  if (job.nodes.size() > LeastNodes(job)) return "";
  std::vector<std::string> why;
  for (const std::string& name : job.nodes) {
    const auto node = std::find_if(nodes.begin(), nodes.end(),
                                   [&](const ScheduleNode& one) { return one.name == name; });
    const char* what = node == nodes.end()                ? " is not in the cluster"
                       : !IsForUser(*node, job.user)      ? " is for other users"
                       : !IsWanted(job, *node)            ? " has not the labels, or is excluded"
                       : !ShareOf(job, *node).has_value() ? " is too small"
                       : IsBarred(job, *node)             ? " is avoided"
                                                          : nullptr;
    if (what != nullptr) {
      why.push_back(absl::StrCat(name, what));
    } else if (!node->closed.empty()) {
      why.push_back(absl::StrCat(name, " is ", node->closed));
    }
  }
  return why.empty() ? "" : absl::StrCat("it asks for nodes by name: ", FirstFew(why, why.size()));
}

}  // namespace

bool IsWanted(const ScheduleJob& job, const ScheduleNode& node) {
  if (job.exclude.count(node.name) != 0) return false;
  return std::all_of(job.labels.begin(), job.labels.end(), [&](const auto& alternatives) {
    return std::any_of(alternatives.begin(), alternatives.end(),
                       [&](const std::string& label) { return HasLabel(node, label); });
  });
}

bool IsBarred(const ScheduleJob& job, const ScheduleNode& node) {
  return !IsForUser(node, job.user) || !IsWanted(job, node) || job.unfit.count(node.name) != 0 ||
         (job.batch && !node.runs_batch_jobs);
}

std::string ShareText(const Share& share) {
  return RoomText(share.cpus, share.gpus,
                  share.memory == 0 ? std::nullopt : std::optional<uint64_t>(share.memory));
}

std::string MissingText(const ScheduleJob& job, size_t lacks, size_t fitting,
                        const std::vector<ScheduleNode>& nodes) {
  std::set<std::string> own;
  for (const HeldShare& held : job.held) own.insert(held.node);
  const size_t candidates = std::count_if(
      nodes.begin(), nodes.end(), [&](const auto& node) { return own.count(node.name) == 0; });
  std::string text = absl::StrCat(Count(lacks, own.empty() ? "node" : "more node"), " with ",
                                  ShareText(LeastShare(job)), ": ");
  const std::string unavailable = UnavailableNames(job, nodes);
  if (!unavailable.empty()) return absl::StrCat(text, unavailable);
  if (candidates == 0) {
    return absl::StrCat(text, "the cluster has ", own.empty() ? "none" : "no other");
  }
  if (fitting == candidates) {
    // Every node would do, but there are too few.
    return absl::StrCat(text, "the cluster has only ", candidates, own.empty() ? "" : " other",
                        own.empty() || candidates == 1 ? "" : "s");
  }
  if (!own.empty() && candidates == 1) {
    absl::StrAppend(&text, "the only other one cannot take it");
  } else {
    absl::StrAppend(&text, fitting, own.empty() ? " of " : " of the other ", candidates,
                    " can take it");
  }
  Group small, little, others, unwanted, unfit, backed_off;
  std::map<std::string, Group> closed;
  // Of the nodes with too few CPUs or GPUs, and of those with only too little memory.
  Share largest, most_memory;
  for (const ScheduleNode& node : nodes) {
    if (own.count(node.name) != 0) continue;
    const std::optional<Share> share = ShareBesidesMemory(job, node);
    if (!IsForUser(node, job.user)) {
      others.Add(node);
    } else if (!IsWanted(job, node)) {
      unwanted.Add(node);
    } else if (!share.has_value()) {
      small.Add(node);
      if (std::make_pair(node.gpus, node.cpus) > std::make_pair(largest.gpus, largest.cpus)) {
        largest = {0, node.cpus, node.gpus, 0};
      }
    } else if (!HasMemoryFor(node, *share)) {
      little.Add(node);
      if (node.memory > most_memory.memory) {
        most_memory = {share->workers, node.cpus, node.gpus, node.memory};
      }
    } else if (IsBarred(job, node)) {
      unfit.Add(node);
    } else if (!node.closed.empty()) {
      closed[node.closed].Add(node);
    } else if (job.backed_off.count(node.name) != 0) {
      backed_off.Add(node);
    }
  }
  std::vector<std::string> why;
  if (small.size > 0) {
    why.push_back(absl::StrCat(Are(small, "too small"), small.size == 1 ? " (it" : " (the largest",
                               " has ", ShareText(largest), ")"));
  }
  if (little.size > 0) {
    // A job that takes whole nodes may need more there than on the smallest node.
    const uint64_t needs = MemoryOf(job, most_memory.workers);
    why.push_back(absl::StrCat(Are(little, "too small"),
                               little.size == 1 ? " (it" : " (the largest", " has ",
                               SizeText(most_memory.memory), " of memory",
                               needs == LeastShare(job).memory
                                   ? ""
                                   : absl::StrCat(", and ", Count(most_memory.workers, "worker"),
                                                  " there need ", SizeText(needs)),
                               ")"));
  }
  for (const auto& [what, group] : closed) why.push_back(Are(group, what));
  if (others.size > 0) {
    why.push_back(Are(others, job.user == kRoot ? "without --user root" : "for other users"));
  }
  if (unwanted.size > 0) {
    why.push_back(Are(unwanted, job.labels.empty() ? "excluded by the job"
                                                   : "without the labels that the job asks for, or "
                                                     "excluded by it"));
  }
  if (backed_off.size > 0) why.push_back(Are(backed_off, "tried again in a moment"));
  if (unfit.size > 0) why.push_back(Are(unfit, "avoided, since it could not begin there"));
  return absl::StrCat(text, why.empty() ? "" : "; ", absl::StrJoin(why, ", "));
}

uint32_t LeastNodes(const ScheduleJob& job) {
  const uint32_t unit = std::max<uint32_t>(job.unit, 1);
  return (job.min + unit - 1) / unit * unit;
}

std::optional<Share> ShareOf(const ScheduleJob& job, const ScheduleNode& node) {
  const std::optional<Share> share = ShareBesidesMemory(job, node);
  return share.has_value() && HasMemoryFor(node, *share) ? share : std::nullopt;
}

NodeShapes::NodeShapes(const std::vector<ScheduleNode>& nodes,
                       const std::vector<HeldShare>& unkillable) {
  std::multimap<std::string, Share> lost;
  for (const HeldShare& held : unkillable) lost.emplace(held.node, held.share);
  for (const ScheduleNode& node : nodes) {
    if (!node.closed.empty()) continue;
    Room room = Room::Of(node);
    const auto [first, last] = lost.equal_range(node.name);
    for (auto share = first; share != last; ++share) room.Add(share->second, -1);
    ++shapes_[{node.user, node.runs_batch_jobs, node.cpus, node.gpus, node.memory, room.cpus,
               room.gpus, room.memory}];
  }
}

size_t NodeShapes::Fitting(const ScheduleJob& job) const {
  size_t fitting = 0;
  for (const auto& [shape, count] : shapes_) {
    ScheduleNode node;
    Room room;
    std::tie(node.user, node.runs_batch_jobs, node.cpus, node.gpus, node.memory, room.cpus,
             room.gpus, room.memory) = shape;
    if (IsBarred(job, node)) continue;
    const std::optional<Share> share = ShareOf(job, node);
    if (share.has_value() && room.Holds(*share)) fitting += count;
  }
  return fitting;
}

bool NodeShapes::CanRun(const ScheduleJob& job) const { return Fitting(job) >= LeastNodes(job); }

namespace {

using Groups = std::map<std::string, std::vector<size_t>>;

// Takes the first `count` nodes of a group.
void Take(size_t count, std::vector<size_t>* group, std::vector<size_t>* chosen) {
  chosen->insert(chosen->end(), group->begin(), group->begin() + count);
  group->erase(group->begin(), group->begin() + count);
}

std::vector<size_t> Spread(Groups groups, std::map<std::string, size_t> used, size_t count) {
  std::vector<size_t> chosen;
  while (chosen.size() < count) {
    // The least used group, and of these the one with the most room.
    Groups::iterator best = groups.end();
    for (auto it = groups.begin(); it != groups.end(); ++it) {
      if (it->second.empty()) continue;
      if (best == groups.end() || std::make_pair(used[it->first], best->second.size()) <
                                      std::make_pair(used[best->first], it->second.size())) {
        best = it;
      }
    }
    ++used[best->first];
    Take(1, &best->second, &chosen);
  }
  return chosen;
}

std::vector<size_t> Pack(Groups groups, const std::map<std::string, size_t>& used, size_t count) {
  std::vector<size_t> chosen;
  while (chosen.size() < count) {
    const size_t missing = count - chosen.size();
    // A group in use comes first, then the smallest that holds all that is missing, then the
    // largest.
    const auto rank = [&](const Groups::value_type& group) {
      const bool enough = group.second.size() >= missing;
      const int64_t size = static_cast<int64_t>(group.second.size());
      return std::make_tuple(used.count(group.first) == 0, !enough, enough ? size : -size);
    };
    Groups::iterator best = groups.end();
    for (auto it = groups.begin(); it != groups.end(); ++it) {
      if (it->second.empty()) continue;
      if (best == groups.end() || rank(*it) < rank(*best)) best = it;
    }
    Take(std::min(missing, best->second.size()), &best->second, &chosen);
  }
  return chosen;
}

}  // namespace

std::vector<size_t> ChooseNodes(std::vector<NodeCandidate> candidates,
                                const std::vector<std::string>& held, NodeLayout layout,
                                size_t count) {
  if (candidates.size() < count) return {};
  std::sort(candidates.begin(), candidates.end(),
            [](const NodeCandidate& a, const NodeCandidate& b) {
              const bool a_last = !a.named, b_last = !b.named;
              return std::tie(a_last, a.spare_gpus, a.spare_cpus, a.spare_memory, a.node) <
                     std::tie(b_last, b.spare_gpus, b.spare_cpus, b.spare_memory, b.node);
            });
  const auto named = std::find_if(candidates.begin(), candidates.end(),
                                  [](const NodeCandidate& one) { return !one.named; });
  // Where the job names nodes, these are chosen however it is laid out.
  if (named != candidates.begin()) layout = NodeLayout::kTight;
  Groups groups;
  for (const NodeCandidate& candidate : candidates) {
    groups[layout == NodeLayout::kTight ? "" : candidate.group].push_back(candidate.node);
  }
  std::map<std::string, size_t> used;
  for (const std::string& group : held) ++used[group];
  if (layout == NodeLayout::kPacked) return Pack(std::move(groups), used, count);
  return Spread(std::move(groups), std::move(used), count);
}

}  // namespace cadre::cluster
