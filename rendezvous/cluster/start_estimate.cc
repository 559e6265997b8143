#include "rendezvous/cluster/start_estimate.h"

#include <algorithm>
#include <cstddef>

namespace cadre::cluster {
namespace {

// Pairs of a job and a node that all passes together look at.
constexpr size_t kMostPairs = 400000;

// A cluster in which nothing happens but that jobs end and others begin.
class Play {
 public:
  Play(const std::vector<ScheduleNode>& nodes, std::vector<ScheduleJob> jobs, MonoTime now)
      : nodes_(nodes), jobs_(std::move(jobs)), now_(now) {}

  // Returns when each job begins that does not run at first.
  std::map<std::string, MonoTime> Run() {
    const size_t pairs = std::max<size_t>(nodes_.size() * jobs_.size(), 1);
    for (size_t pass = 0; pass < kMostPairs / pairs; ++pass) {
      const bool any_waits = Pass();
      const MonoTime next = NextEnd();
      if (!any_waits || next == MonoTime::Never()) break;
      now_ = std::max(now_, next);
      EndJobs();
    }
    return std::move(begins_);
  }

 private:
  // Returns whether jobs wait that may begin later.
  bool Pass() {
    const Schedule schedule = PlaceJobs(nodes_, jobs_, now_);
    std::map<std::string, ScheduleJob*> by_name;
    for (ScheduleJob& job : jobs_) by_name[job.name] = &job;
    for (const Withdrawn& withdrawn : schedule.withdraw) {
      std::vector<HeldShare>& held = by_name.at(withdrawn.job)->held;
      held.erase(std::remove_if(held.begin(), held.end(),
                                [&](const auto& one) { return one.node == withdrawn.node; }),
                 held.end());
    }
    for (const Placed& placed : schedule.place) {
      ScheduleJob& job = *by_name.at(placed.job);
      if (job.held.empty()) {
        begins_.emplace(job.name, now_);
        job.ends = now_ + job.limit;
      }
      job.held.push_back({placed.node, placed.share});
    }
    return schedule.waiting.size() > schedule.impossible.size();
  }
  MonoTime NextEnd() const {
    MonoTime next = MonoTime::Never();
    for (const ScheduleJob& job : jobs_) {
      if (!job.held.empty()) next = std::min(next, job.ends);
    }
    return next;
  }
  void EndJobs() {
    jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(),
                               [this](const ScheduleJob& job) {
                                 return !job.held.empty() && job.ends <= now_;
                               }),
                jobs_.end());
  }

  const std::vector<ScheduleNode>& nodes_;
  std::vector<ScheduleJob> jobs_;
  MonoTime now_;
  std::map<std::string, MonoTime> begins_;
};

}  // namespace

std::map<std::string, StartRange> EstimateStarts(
    const std::vector<ScheduleNode>& nodes, const std::vector<ScheduleJob>& jobs, MonoTime now,
    const std::map<std::string, absl::Duration>& usual) {
  std::vector<ScheduleJob> early = jobs;
  for (ScheduleJob& job : early) {
    const auto found = usual.find(job.name);
    const absl::Duration runs = found == usual.end() ? absl::ZeroDuration() : found->second;
    // `ends` is `limit` after the job began.
    if (job.ends != MonoTime::Never()) job.ends = std::max(now, job.ends + -(job.limit - runs));
    if (job.limit == absl::InfiniteDuration() && !job.held.empty()) job.ends = now;
    job.limit = std::min(job.limit, runs);
  }
  std::map<std::string, StartRange> ranges;
  for (const auto& [name, at] : Play(nodes, std::move(early), now).Run()) ranges[name].from = at;
  for (const auto& [name, at] : Play(nodes, jobs, now).Run()) ranges[name].until = at;
  // Where a job that usually ends early gives its place to another one, the order may be the other
  // way round.
  for (auto& [name, range] : ranges) range.from = std::min(range.from, range.until);
  return ranges;
}

}  // namespace cadre::cluster
