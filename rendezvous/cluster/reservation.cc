// Methods of Planner: what is kept for the head of the queue: the first job that does not fit.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"
#include "rendezvous/cluster/planner.h"
#include "rendezvous/cluster/suitability.h"

namespace cadre::cluster {

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
  CADRE_CHECK(share.has_value(), "no node is of use to ", head.job->name, ", which is possible");
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

}  // namespace cadre::cluster
