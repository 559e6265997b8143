#include "rendezvous/cluster/eligibility.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/text.h"

namespace cadre::cluster {
namespace {

constexpr char kDependency[] = "Dependency";
constexpr char kDependencyNeverSatisfied[] = "DependencyNeverSatisfied";

// Whether one dependency is met. Not met: what it waits for, and whether that can still happen.
struct Met {
  bool met = false;
  bool never = false;
  std::string waits_for;
  MonoTime until = MonoTime::Never();
};

Met IsMet(const v1::Dependency& dependency, const state::Job& on, MonoTime now) {
  const v1::JobPhase phase = on.phase();
  const std::string name = absl::StrCat("job ", on.id());
  switch (dependency.kind()) {
    case v1::Dependency::AFTER: {
      if (phase == v1::QUEUED) {
        return {false, false, absl::StrCat(name, " to begin"), MonoTime::Never()};
      }
      const MonoTime at =
          MonoTime::FromMicros(on.saved.times().began_us()) + FromProto(dependency.delay());
      const bool cancelled = on.saved.times().began_us() == 0;
      if (cancelled || at <= now) return {true, false, "", MonoTime::Never()};
      return {false, false,
              absl::StrCat(name, " to have run for ", ShortDuration(FromProto(dependency.delay()))),
              at};
    }
    case v1::Dependency::AFTER_OK:
    case v1::Dependency::AFTER_CORRESPONDING:
      return {phase == v1::SUCCEEDED, state::HasEnded(phase) && phase != v1::SUCCEEDED,
              absl::StrCat(name, " to succeed"), MonoTime::Never()};
    case v1::Dependency::AFTER_NOT_OK:
      return {state::HasEnded(phase) && phase != v1::SUCCEEDED, phase == v1::SUCCEEDED,
              absl::StrCat(name, " to fail"), MonoTime::Never()};
    default:
      return {state::HasEnded(phase), false, absl::StrCat(name, " to end"), MonoTime::Never()};
  }
}

// A job that was dropped from the state ended long ago, nobody knows how.
Met IsMetByForgotten(const v1::Dependency& dependency) {
  const bool any =
      dependency.kind() == v1::Dependency::AFTER || dependency.kind() == v1::Dependency::AFTER_ANY;
  return {any, !any,
          absl::StrCat("job ", dependency.job(), ", which the server does not know any more"),
          MonoTime::Never()};
}

// Returns the jobs that the dependency names: one, or all elements of an array, or the element that
// corresponds to `job`.
std::vector<const state::Job*> JobsOf(const v1::Dependency& dependency, const state::Job& job,
                                      const state::State& state) {
  std::vector<const state::Job*> jobs;
  const saved::Submission& own = job.saved.submission();
  for (auto next = state.by_id.lower_bound(dependency.job()); next != state.by_id.end(); ++next) {
    const state::Job& one = state.jobs.at(next->second);
    const saved::Submission& submission = one.saved.submission();
    if (next->first != dependency.job() && submission.array() != dependency.job()) {
      // Elements have consecutive ids.
      break;
    }
    // A job that is no element waits for all elements.
    const bool corresponds = dependency.kind() != v1::Dependency::AFTER_CORRESPONDING ||
                             submission.array() == 0 || own.array() == 0 ||
                             submission.array_index() == own.array_index();
    if (corresponds) jobs.push_back(&one);
  }
  return jobs;
}

Met IsSingleton(const state::Job& job, const state::State& state) {
  const auto ids = state.by_submitted_name.find(job.submitted_name());
  if (ids == state.by_submitted_name.end()) return {true, false, "", MonoTime::Never()};
  for (const uint64_t id : ids->second) {
    if (id >= job.id()) break;
    const state::Job& other = state.jobs.at(state.by_id.at(id));
    if (other.user() == job.user() && !state::HasEnded(other.phase())) {
      return {false, false, absl::StrCat("job ", id, " of the same name to end"),
              MonoTime::Never()};
    }
  }
  return {true, false, "", MonoTime::Never()};
}

Met IsMet(const v1::Dependency& dependency, const state::Job& job, const state::State& state,
          MonoTime now) {
  if (dependency.kind() == v1::Dependency::SINGLETON) return IsSingleton(job, state);
  const std::vector<const state::Job*> jobs = JobsOf(dependency, job, state);
  if (jobs.empty() && state.by_id.count(dependency.job()) != 0) {
    return {false, true,
            absl::StrCat("element ", dependency.job(), "_", job.saved.submission().array_index(),
                         ", which there is not"),
            MonoTime::Never()};
  }
  if (jobs.empty()) return IsMetByForgotten(dependency);
  for (const state::Job* on : jobs) {
    // A job does not wait for itself, which it may name as an element of its array.
    if (on->id() == job.id()) continue;
    Met one = IsMet(dependency, *on, now);
    if (!one.met) return one;
  }
  return {true, false, "", MonoTime::Never()};
}

std::optional<NotEligible> WhyDependent(const state::Job& job, const state::State& state,
                                        MonoTime now) {
  const v1::QueueOptions& queue = job.saved.spec().queue();
  if (queue.dependencies().empty()) return std::nullopt;
  std::vector<std::string> waits_for;
  NotEligible why;
  why.word = kDependency;
  int met = 0, never = 0;
  for (const v1::Dependency& dependency : queue.dependencies()) {
    const Met one = IsMet(dependency, job, state, now);
    met += one.met;
    never += one.never;
    if (one.met) continue;
    waits_for.push_back(one.waits_for);
    why.until = std::min(why.until, one.until);
  }
  const int all = queue.dependencies_size();
  if (queue.any_dependency() ? met > 0 : met == all) return std::nullopt;
  why.reason =
      FirstFew({waits_for.begin(), waits_for.begin() + std::min(kFirstFew, waits_for.size())},
               waits_for.size());
  why.never = queue.any_dependency() ? never == all : never > 0;
  if (why.never) why.word = kDependencyNeverSatisfied;
  return why;
}

}  // namespace

RunningElements CountRunningElements(const state::State& state,
                                     const std::set<std::string>& begun) {
  RunningElements running;
  for (const std::string& name : begun) {
    const auto job = state.jobs.find(name);
    if (job == state.jobs.end() || job->second.saved.submission().array() == 0) continue;
    ++running[job->second.saved.submission().array()];
  }
  return running;
}

std::optional<NotEligible> WhyNotEligible(const state::Job& job, const state::State& state,
                                          const RunningElements& running, const CoreConfig& config,
                                          MonoTime now) {
  const saved::Submission& submission = job.saved.submission();
  if (submission.held()) {
    return NotEligible{"its release: it is held", "JobHeldUser", MonoTime::Never(), false};
  }
  if (const int64_t begin_ms = job.saved.spec().queue().begin_unix_ms(); begin_ms != 0) {
    const MonoTime begin = config.AtUnixMs(begin_ms);
    if (now < begin) {
      return NotEligible{absl::StrCat("its time to begin, in ", ShortDuration(begin - now)),
                         "BeginTime", begin, false};
    }
  }
  if (auto dependent = WhyDependent(job, state, now)) return dependent;
  const auto elements = running.find(submission.array());
  if (submission.array_at_once() != 0 && elements != running.end() &&
      elements->second >= submission.array_at_once()) {
    return NotEligible{absl::StrCat("other elements of its array to end: ", elements->second,
                                    " run, and no more may at the same time"),
                       "JobArrayTaskLimit", MonoTime::Never(), false};
  }
  return std::nullopt;
}

absl::Status CheckDependencies(const v1::QueueOptions& queue, const state::State& state) {
  for (const v1::Dependency& dependency : queue.dependencies()) {
    if (dependency.kind() == v1::Dependency::SINGLETON) continue;
    const uint64_t id = dependency.job();
    if (id > state.counters.submitted()) {
      return absl::NotFoundError(absl::StrCat("the job cannot depend on job ", id,
                                              ": there is no such job (the last one has id ",
                                              state.counters.submitted(), ")"));
    }
    if (state.by_id.count(id) == 0 && IsMetByForgotten(dependency).never) {
      return absl::NotFoundError(
          absl::StrCat("the job cannot depend on job ", id,
                       ": it ended long ago, and the server does not know any more how"));
    }
    const auto batch = state.by_id.find(id);
    if (batch != state.by_id.end() &&
        state.jobs.at(batch->second).saved.submission().step_of() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the job cannot depend on job ", id, ": it is a step; name its batch job"));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre::cluster
