#include "agent/supervisor/stop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/supervisor/pidfd.h"
#include "agent/supervisor/process_scan.h"
#include "agent/supervisor/reap.h"
#include "base/clock.h"

namespace cadre {
namespace {

constexpr int kShutDownPollMs = 2;

// The group where there is one; the process alone before it has made its session.
void SignalWorker(const Worker& worker, int signal) {
  if (worker.exited) return;
  if (kill(-worker.pid, signal) != 0 && errno == ESRCH && worker.pidfd.ok()) {
    SignalPidfd(worker.pidfd.get(), signal);
  }
}

void KillWorker(Worker& worker) {
  if (worker.exited) return;
  worker.killed = true;
  kill(-worker.pid, SIGKILL);
  // It may be on its way from one group to the other.
  if (worker.pidfd.ok()) SignalPidfd(worker.pidfd.get(), SIGKILL);
}

bool NeedsScan(const State& state, const Generation& generation) {
  return std::any_of(generation.workers.begin(), generation.workers.end(),
                     [&](uint64_t slot) { return !state.workers.at(slot).in_cgroup; });
}

bool AllExited(const State& state, const Generation& generation) {
  return std::all_of(generation.workers.begin(), generation.workers.end(),
                     [&](uint64_t slot) { return state.workers.at(slot).exited; });
}

void Kill(State& state, uint64_t number, Generation& generation, MonoTime now) {
  for (const uint64_t slot : generation.workers) KillWorker(state.workers.at(slot));
  state.cgroups.KillGeneration(number);
  if (generation.killed) return;
  generation.killed = true;
  generation.give_up_at = now + kUnkillableAfter;
  if (NeedsScan(state, generation)) generation.scan_at = now;
}

// Kills what the generation's workers left behind: what carries its marker or is in one of its
// sessions, and, while no other generation could own them, all orphans that came to us. Their own
// children come to us in turn, so repeating this finds the whole tree.
std::vector<pid_t> KillSurvivors(const State& state, uint64_t number,
                                 const Generation& generation) {
  std::set<pid_t> sessions;
  for (const uint64_t slot : generation.workers) sessions.insert(state.workers.at(slot).pid);
  const bool alone = state.generations.size() == 1;
  const std::string marker = absl::StrCat(state.id, ".", number);
  return KillProcesses([&](const ProcessInfo& process) {
    if (sessions.count(process.session) > 0) return true;
    if (alone && process.parent == getpid()) return true;
    return HasMarker(process.pid, marker);
  });
}

// What has left its cgroup, as sudo and su do where systemd gives them a session of their own,
// comes to us at the latest when its parent ends.
bool HasChildren() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

std::vector<pid_t> Survivors(State& state, uint64_t number, Generation& generation, MonoTime now) {
  std::vector<pid_t> left;
  if (generation.scan_at <= now) {
    left = KillSurvivors(state, number, generation);
    generation.scan_at = left.empty() ? MonoTime::Never() : now + kScanInterval;
  } else if (generation.scan_at != MonoTime::Never()) {
    left.push_back(0);  // not looked yet
  }
  if (!generation.cgroup_events.ok()) {
    generation.cgroup_events = state.cgroups.Watch(number);
    if (generation.cgroup_events.ok()) {
      state.Watch(generation.cgroup_events.get(), Source::kCgroup, generation.slot, EPOLLPRI);
    }
  }
  if (CgroupTree::Populated(generation.cgroup_events)) {
    // A worker that was cloned into the cgroup while it was being killed escapes nobody.
    left.push_back(0);
  }
  // While there is one generation only, whose workers are out, no child can be another's.
  if (left.empty() && state.generations.size() == 1 && HasChildren()) {
    left = KillSurvivors(state, number, generation);
    if (!left.empty()) generation.scan_at = now + kScanInterval;
  }
  return left;
}

void SayAllGone(State& state, uint64_t number) {
  state.outbox.Send(AllGoneFrame{number});
  state.gone.push_back(number);
  if (state.gone.size() > kRememberedGenerations) state.gone.pop_front();
}

void Finish(State& state, uint64_t number, Generation& generation) {
  if (generation.cgroup_events.ok()) state.Unwatch(generation.cgroup_events.get());
  generation.cgroup_events.Reset();
  for (const uint64_t slot : generation.workers) {
    Worker& worker = state.workers.at(slot);
    for (CapturedStream* stream :
         {&worker.standard_output, &worker.standard_error, &worker.progress}) {
      stream->ReadAvailable(state.outbox);
      stream->FlushRest(state.outbox);
      CloseStream(state, *stream);
    }
    state.by_pid.erase(worker.pid);
    state.workers.erase(slot);
  }
  state.cgroups.RemoveGeneration(number);
  SayAllGone(state, number);
}

// What SIGKILL does not end sits in the kernel (a dead file system, a hung driver). The job goes
// on without it, and a person is told.
void GiveUp(State& state, uint64_t number, const Generation& generation) {
  std::vector<int> pids = state.cgroups.Processes(number);
  for (const uint64_t slot : generation.workers) {
    Worker& worker = state.workers.at(slot);
    if (worker.exited) continue;
    if (!worker.in_cgroup) pids.push_back(worker.pid);
    ExitedFrame frame;
    frame.generation = number;
    frame.local_rank = worker.local_rank;
    frame.pid = worker.pid;
    frame.signal = SIGKILL;
    frame.last_lines = "killed, but still in the kernel";
    ReportExit(state, frame);
  }
  Complain(absl::StrCat("generation ", number, ": SIGKILL did not end pid ",
                        absl::StrJoin(pids, ", "), " in ", absl::FormatDuration(kUnkillableAfter),
                        "; see /proc/<pid>/wchan; going on without"));
}

// True when the generation is over.
bool Advance(State& state, uint64_t number, Generation& generation, MonoTime now) {
  if (now >= generation.hold_until) {
    generation.stopping = true;
    generation.kill_at = std::min(generation.kill_at, now);
  }
  if (!generation.stopping) return false;
  const bool all_exited = AllExited(state, generation);
  // Once the workers are out, nobody needs the rest of the grace.
  if (!generation.killed && (all_exited || now >= generation.kill_at)) {
    Kill(state, number, generation, now);
  }
  if (now >= generation.give_up_at) {
    GiveUp(state, number, generation);
    return true;
  }
  return all_exited && Survivors(state, number, generation, now).empty();
}

}  // namespace

void StopGeneration(State& state, const StopFrame& stop, MonoTime now) {
  const auto found = state.generations.find(stop.generation);
  if (found == state.generations.end()) {
    const bool said = std::count(state.gone.begin(), state.gone.end(), stop.generation) > 0;
    if (!said) SayAllGone(state, stop.generation);
    return;
  }
  Generation& generation = found->second;
  const MonoTime kill_at = now + absl::Milliseconds(stop.grace_ms);
  generation.kill_at = std::min(generation.kill_at, kill_at);
  if (!generation.stopping && stop.grace_ms > 0) {
    // SIGCONT after SIGTERM: a stopped process acts on nothing else.
    for (const int signal : {SIGTERM, SIGCONT}) {
      SignalGeneration(state, SignalFrame{stop.generation, signal});
    }
  }
  generation.stopping = true;
}

void HoldGeneration(State& state, const HoldFrame& hold) {
  const auto found = state.generations.find(hold.generation);
  if (found == state.generations.end()) return;
  found->second.hold_until = MonoTime::FromMicros(hold.until_us);
}

void SignalGeneration(State& state, const SignalFrame& signal) {
  const auto found = state.generations.find(signal.generation);
  if (found == state.generations.end() || signal.signal <= 0 || signal.signal >= NSIG) return;
  for (const uint64_t slot : found->second.workers) {
    SignalWorker(state.workers.at(slot), signal.signal);
  }
}

void AdvanceGenerations(State& state, MonoTime now) {
  for (auto it = state.generations.begin(); it != state.generations.end();) {
    if (Advance(state, it->first, it->second, now)) {
      Finish(state, it->first, it->second);
      it = state.generations.erase(it);
    } else {
      ++it;
    }
  }
}

MonoTime NextDeadline(const State& state) {
  MonoTime next = state.keeping.until;
  for (const auto& [number, generation] : state.generations) {
    if (!generation.killed) next = std::min(next, generation.hold_until);
    if (!generation.stopping) continue;
    if (!generation.killed) next = std::min(next, generation.kill_at);
    next = std::min({next, generation.scan_at, generation.give_up_at});
  }
  return next;
}

bool ShutDown(State& state) {
  const MonoTime now = MonoNow();
  const MonoTime end = now + kShutDownLimit;
  bool scan = !state.cgroups.usable();
  for (auto& [number, generation] : state.generations) {
    Kill(state, number, generation, now);
    scan = scan || NeedsScan(state, generation);
  }
  state.cgroups.KillAll();
  const std::string marker = absl::StrCat(state.id, ".");
  bool done = false;
  while (!done && MonoNow() < end) {
    ReapAll(state);
    const bool left =
        scan && !KillProcesses([&](const ProcessInfo& process) {
                   return process.parent == getpid() || HasMarker(process.pid, marker);
                 }).empty();
    const bool childless = !HasChildren();
    const bool removed = state.cgroups.RemoveAll();
    done = childless && !left && removed;
    scan = scan || (removed && !childless);
    if (!done) poll(nullptr, 0, kShutDownPollMs);
  }
  return done;
}

}  // namespace cadre
