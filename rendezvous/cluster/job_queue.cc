#include "rendezvous/cluster/job_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "rendezvous/cluster/steps.h"
#include "rpc/versions.h"

namespace cadre::cluster {

void JobQueue::Add(const state::Job& job) {
  Remove(job.name());
  if (job.user().empty() || IsStep(job) || state::HasEnded(job.phase())) return;
  if (job.phase() != v1::QUEUED) {
    begun_.insert(job.name());
    return;
  }
  const Key key{-int64_t{job.saved.spec().priority()}, job.saved.submission().order(), job.name()};
  keys_.emplace(job.name(), key);
  waiting_.insert(key);
}

void JobQueue::Remove(const std::string& name) {
  begun_.erase(name);
  if (const auto aside = aside_.find(name); aside != aside_.end()) EraseAside(aside);
  const auto key = keys_.find(name);
  if (key == keys_.end()) return;
  waiting_.erase(key->second);
  keys_.erase(key);
}

void JobQueue::SetAside(const std::string& name, const std::string& why, bool backed_off) {
  const auto key = keys_.find(name);
  if (key == keys_.end()) return;
  waiting_.erase(key->second);
  aside_[name] = {why, backed_off, std::nullopt};
}

void JobQueue::SetNotEligible(const std::string& name, NotEligible why) {
  const auto key = keys_.find(name);
  if (key == keys_.end()) return;
  waiting_.erase(key->second);
  if (why.until != MonoTime::Never()) eligible_at_.emplace(why.until, name);
  std::string reason = why.reason;
  aside_[name] = {std::move(reason), false, std::move(why)};
}

const NotEligible* JobQueue::WhyNotEligible(const std::string& name) const {
  const auto found = aside_.find(name);
  const bool known = found != aside_.end() && found->second.not_eligible.has_value();
  return known ? &*found->second.not_eligible : nullptr;
}

JobQueue::AsideJobs::iterator JobQueue::EraseAside(AsideJobs::iterator job) {
  if (job->second.not_eligible.has_value()) {
    eligible_at_.erase({job->second.not_eligible->until, job->first});
  }
  return aside_.erase(job);
}

void JobQueue::ReconsiderNotEligible() {
  Reconsider([](const Aside& aside) { return aside.not_eligible.has_value(); });
}

const JobQueue::Key* JobQueue::KeyOf(const std::string& name) const {
  const auto found = keys_.find(name);
  return found == keys_.end() ? nullptr : &found->second;
}

std::string* JobQueue::ReasonSetAside(const std::string& name) {
  const auto found = aside_.find(name);
  return found == aside_.end() ? nullptr : &found->second.why;
}

template <typename Which>
void JobQueue::Reconsider(const Which& which) {
  for (auto it = aside_.begin(); it != aside_.end();) {
    if (!which(it->second)) {
      ++it;
      continue;
    }
    waiting_.insert(keys_.at(it->first));
    it = EraseAside(it);
  }
}

void JobQueue::ReconsiderAll() {
  Reconsider([](const Aside& aside) { return !aside.not_eligible.has_value(); });
}

void JobQueue::ReconsiderBackedOff() {
  Reconsider([](const Aside& aside) { return aside.backed_off; });
}

namespace {

constexpr absl::Duration kShortest = absl::Seconds(1);
constexpr absl::Duration kLongest = absl::Minutes(1);

absl::Duration BackoffAfter(uint32_t failed_starts) {
  absl::Duration rest = kShortest;
  for (uint32_t i = 1; i < failed_starts && rest < kLongest; ++i) rest *= 2;
  return std::min(rest, kLongest);
}

}  // namespace

void StartBackoffs::Add(uint64_t submission, const std::string& node, uint32_t failed_starts,
                        MonoTime now) {
  backoffs_.emplace(now + BackoffAfter(failed_starts), submission, node);
}

bool StartBackoffs::Expire(MonoTime now) {
  bool any = false;
  while (NextDeadline() <= now) {
    backoffs_.erase(backoffs_.begin());
    any = true;
  }
  return any;
}

MonoTime StartBackoffs::NextDeadline() const {
  return backoffs_.empty() ? MonoTime::Never() : std::get<0>(*backoffs_.begin());
}

std::map<uint64_t, std::set<std::string>> StartBackoffs::ByJob() const {
  std::map<uint64_t, std::set<std::string>> by_job;
  for (const auto& [until, submission, node] : backoffs_) by_job[submission].insert(node);
  return by_job;
}

std::vector<ScheduleNode> NodesToSchedule(const state::State& state, const Agents& agents) {
  std::vector<ScheduleNode> nodes;
  for (const auto& [name, known] : state.cluster.nodes) {
    const Agent* agent = agents.Find(name);
    ScheduleNode node;
    node.name = name;
    node.user = known.user();
    node.cpus = known.cpus();
    node.gpus = known.gpus();
    node.memory = known.memory();
    node.labels.insert(known.labels().begin(), known.labels().end());
    node.runs_batch_jobs = agent == nullptr || rpc::KnowsBatchJobs(agent->version);
    const bool here = agent != nullptr && agent->stream.has_value();
    node.closed = !here                       ? "away"
                  : agent->closing            ? "leaving"
                  : known.drained()           ? "drained"
                  : !agent->leftovers.empty() ? "still ending an earlier job"
                                              : "";
    nodes.push_back(std::move(node));
  }
  return nodes;
}

Held HeldShares(const state::State& state, const Agents& agents) {
  Held held;
  for (const auto& [id, allocation] : state.cluster.allocations) {
    if (IsWithin(allocation.part(), state)) continue;
    held[allocation.part().job()].push_back(
        {allocation.part().node(),
         Share{allocation.part().workers(), allocation.part().cpus(), allocation.part().gpus(),
               allocation.part().memory()},
         allocation.taken_back(), agents.HasUnkillable(allocation.part().node(), id)});
  }
  return held;
}

ScheduleJob JobToSchedule(const state::Job& job, const BackedOffNodes& backed_off,
                          absl::Duration stop_margin) {
  ScheduleJob to;
  to.name = job.name();
  to.user = job.user();
  to.priority = job.saved.spec().priority();
  to.order = job.saved.submission().order();
  const v1::JobSpec& spec = job.saved.spec();
  to.batch = spec.has_batch();
  to.min = to.batch ? std::max(spec.nodes().min(), 1u) : job.policy.min;
  to.max = to.batch ? std::max(spec.nodes().max(), to.min) : job.policy.max;
  to.unit = job.policy.unit;
  to.may_grow = !to.batch && job.policy.scale_up != v1::ElasticPolicy::NEVER;
  to.workers = job.saved.spec().workers_per_node();
  to.resources = job.saved.spec().resources();
  to.spread_over = spec.placement().spread_over();
  to.pack = spec.placement().pack();
  to.nodes.insert(spec.placement().nodes().begin(), spec.placement().nodes().end());
  to.exclude.insert(spec.placement().exclude().begin(), spec.placement().exclude().end());
  for (const std::string& label : spec.placement().labels()) {
    to.labels.push_back(absl::StrSplit(label, '|'));
  }
  for (const v1::AvoidedNode& avoided : job.saved.submission().avoided()) {
    (avoided.unfit() ? to.unfit : to.avoid).insert(avoided.node());
  }
  if (const auto found = backed_off.find(to.order); found != backed_off.end()) {
    to.backed_off = found->second;
  }
  // The limit includes the time that the workers may take to stop.
  to.limit = job.policy.total_timeout + job.policy.stop_grace + stop_margin;
  if (job.phase() != v1::QUEUED) {
    const saved::JobTimes& times = job.saved.times();
    to.ends = MonoTime::FromMicros(times.limit_from_us() == 0 ? times.created_us()
                                                              : times.limit_from_us()) +
              to.limit;
  }
  return to;
}

std::vector<ScheduleJob> BegunJobs(const state::State& state, const std::set<std::string>& begun,
                                   Held held, const BackedOffNodes& backed_off,
                                   absl::Duration stop_margin) {
  std::set<std::string> names = begun;
  for (const auto& [name, shares] : held) names.insert(name);
  std::vector<ScheduleJob> jobs;
  jobs.reserve(names.size());
  for (const std::string& name : names) {
    const auto job = state.jobs.find(name);
    ScheduleJob& to = jobs.emplace_back();
    const bool runs = job != state.jobs.end() && !state::HasEnded(job->second.phase()) &&
                      !job->second.saved.submission().requeued();
    if (runs && !IsStep(job->second)) {
      to = JobToSchedule(job->second, backed_off, stop_margin);
    } else {
      // Jobs that have ended, were put back into the queue or were dropped from the state may still
      // hold shares, and so may steps whose batch job has ended.
      to.name = name;
      to.min = to.max = 0;
    }
    if (const auto holds = held.find(name); holds != held.end()) to.held = std::move(holds->second);
  }
  return jobs;
}

}  // namespace cadre::cluster
