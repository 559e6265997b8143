#include "rendezvous/cluster/schedule.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/cluster/planner.h"
#include "rendezvous/cluster/suitability.h"

namespace cadre::cluster {

const char kBehindManyOthers[] = "its turn: 500 jobs that could run are before it in the queue";
static_assert(kQueueDepth == 500);

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
  schedule_.impossible.insert(job.name);
  if (job.unfit.empty()) return false;
  const size_t suitable = std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& node) {
    return !IsBarred(job, node) && ShareOf(job, node).has_value();
  });
  if (suitable < plan->least) schedule_.hopeless[job.name] = why;
  return false;
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
  size_t possible = 0;
  for (Plan* plan : Queue()) {
    Waiting waiting;
    if (possible == kQueueDepth) {
      waiting.reason = kBehindManyOthers;
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

Schedule PlaceJobs(const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs,
                   MonoTime now) {
  return Planner(nodes, jobs, now).Run();
}

}  // namespace cadre::cluster
