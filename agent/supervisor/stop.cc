#include "agent/supervisor/stop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/reap.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

constexpr int kShutDownPollMs = 2;

// The process group where there is one; the process alone before it has made its session.
void SendSignal(const Group& group, int signal) {
  if (group.exited) return;
  if (kill(-group.pid, signal) != 0 && errno == ESRCH && group.pidfd.ok()) {
    SignalPidfd(group.pidfd.get(), signal);
  }
}

// Whether its cgroup, where it has one, does not tell what is left.
bool NeedsScan(const Group& group) { return group.pid != 0 && !group.in_cgroup; }

void Kill(State& state, uint64_t serial, Group& group, MonoTime now) {
  Ending& ending = group.ending;
  if (!group.exited) {
    kill(-group.pid, SIGKILL);
    // It may be on its way from one process group to the other.
    if (group.pidfd.ok()) SignalPidfd(group.pidfd.get(), SIGKILL);
  }
  state.cgroups.Kill(serial);
  if (ending.killed) return;
  ending.killed = true;
  ending.give_up_at = now + kUnkillableAfter;
  if (NeedsScan(group)) ending.scan_at = now;
}

// Whether what nobody can be told to own is this group's. One that stands by has hardly begun.
bool IsLast(const State& state, uint64_t serial) {
  return std::all_of(state.groups.begin(), state.groups.end(), [serial](const auto& other) {
    return other.first == serial || other.second.standby.ok();
  });
}

// Kills what the processes of these groups left behind; returns of which it found anything.
// Children of what is killed come to us in turn, so repeating this finds the whole tree. `orphans`:
// what came to us and cannot be told to be anybody's counts as the first one's.
std::set<uint64_t> KillSurvivors(const State& state, const std::set<uint64_t>& serials,
                                 bool orphans) {
  std::map<pid_t, uint64_t> sessions;
  std::map<std::string, uint64_t> markers;
  for (const uint64_t serial : serials) {
    const Group& group = state.groups.at(serial);
    if (group.pid != 0) sessions[group.pid] = serial;
    markers[state.MarkerOf(serial)] = serial;
  }
  std::set<uint64_t> found;
  KillProcesses([&](const ProcessInfo& process) {
    const auto session = sessions.find(process.session);
    if (session != sessions.end()) return found.insert(session->second), true;
    const auto marker = markers.find(ReadMarker(process.pid));
    if (marker != markers.end()) return found.insert(marker->second), true;
    if (!orphans || process.parent != getpid() || state.by_pid.count(process.pid) != 0)
      return false;
    return found.insert(*serials.begin()), true;
  });
  return found;
}

// For all groups at once: it takes a while.
void Scan(State& state, MonoTime now) {
  std::set<uint64_t> due;
  for (const auto& [serial, group] : state.groups) {
    if (group.exited && group.ending.scan_at <= now) due.insert(serial);
  }
  if (due.empty()) return;
  const std::set<uint64_t> left = KillSurvivors(state, due, false);
  for (const uint64_t serial : due) {
    state.groups.at(serial).ending.scan_at =
        left.count(serial) != 0 ? now + kScanInterval : MonoTime::Never();
  }
}

// What has left its cgroup, as sudo and su do where systemd gives them a session of their own,
// comes to us at the latest when its parent ends.
bool HasChildren() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

// Whether one of the children that we did not start is this group's, or may be.
bool HasOrphans(State& state, uint64_t serial, MonoTime now) {
  ReapAll(state);
  if (!HasChildren()) return false;
  bool orphans = false;
  for (const pid_t child : OwnChildren()) {
    if (state.by_pid.count(child) != 0) continue;
    const auto process = InspectProcess(child);
    if (!process.has_value()) continue;
    // It has left its cgroup, and nothing tells any more whose it is. SIGCHLD will tell its end.
    if (process->exiting) return true;
    orphans = true;
  }
  if (!orphans || KillSurvivors(state, {serial}, IsLast(state, serial)).empty()) return false;
  state.groups.at(serial).ending.scan_at = now + kScanInterval;
  return true;
}

// Whether a process of the group may be left.
bool IsPopulated(State& state, uint64_t serial, Group& group, MonoTime now) {
  Ending& ending = group.ending;
  if (!ending.cgroup_events.ok()) {
    ending.cgroup_events = state.cgroups.Watch(serial);
    if (ending.cgroup_events.ok()) {
      state.Watch(ending.cgroup_events.get(), Source::kCgroup, serial, EPOLLPRI);
    }
  }
  // A process that was cloned into the cgroup while that was being killed escapes nobody.
  const bool left =
      ending.scan_at != MonoTime::Never() || CgroupTree::Populated(ending.cgroup_events);
  return left || HasOrphans(state, serial, now);
}

void Finish(State& state, uint64_t serial, Group& group) {
  if (group.ending.cgroup_events.ok()) state.Unwatch(group.ending.cgroup_events.get());
  group.ending.cgroup_events.Reset();
  PassOnOutput(state, group);
  for (CapturedStream* stream : {&group.standard_output, &group.standard_error, &group.progress}) {
    CloseStream(state, *stream);
  }
  state.by_pid.erase(group.pid);
  state.by_id.erase(group.id);
  state.cgroups.Remove(serial);
  state.outbox.Send(AllGoneFrame{group.id});
}

// What SIGKILL does not end sits in the kernel (a dead file system, a hung driver). The job goes
// on without it, and a person is told.
void GiveUp(State& state, uint64_t serial, Group& group) {
  std::vector<int> pids = state.cgroups.Processes(serial);
  if (!group.exited) {
    if (!group.in_cgroup) pids.push_back(group.pid);
    group.end.signal = SIGKILL;
    group.end.last_lines = "killed, but still in the kernel";
    ReportExit(state, group);
  }
  Complain(absl::StrCat("group ", group.id, ": SIGKILL did not end pid ", absl::StrJoin(pids, ", "),
                        " in ", absl::FormatDuration(kUnkillableAfter),
                        "; see /proc/<pid>/wchan; going on without"));
}

// Kills the group when it is time to.
void Advance(State& state, uint64_t serial, Group& group, MonoTime now) {
  Ending& ending = group.ending;
  if (now >= ending.hold_until) {
    ending.asked = true;
    ending.kill_at = std::min(ending.kill_at, now);
  }
  // Once the process is out, nobody needs the rest of the grace.
  const bool due = ending.asked && (group.exited || now >= ending.kill_at);
  if (due && !ending.killed) Kill(state, serial, group, now);
}

bool IsOver(State& state, uint64_t serial, Group& group, MonoTime now) {
  if (now >= group.ending.give_up_at) {
    GiveUp(state, serial, group);
    return true;
  }
  return group.ending.asked && group.exited && !IsPopulated(state, serial, group, now);
}

}  // namespace

void StopGroup(State& state, const StopFrame& stop, MonoTime now) {
  Group* group = state.Find(stop.group);
  if (group == nullptr) return state.outbox.Send(AllGoneFrame{stop.group});
  group->ending.kill_at = std::min(group->ending.kill_at, now + absl::Milliseconds(stop.grace_ms));
  if (!group->ending.asked && stop.grace_ms > 0) {
    // SIGCONT after SIGTERM: a stopped process acts on nothing else.
    for (const int signal : {SIGTERM, SIGCONT}) SendSignal(*group, signal);
  }
  group->ending.asked = true;
}

void HoldGroup(State& state, const HoldFrame& hold) {
  Group* group = state.Find(hold.group);
  if (group != nullptr) group->ending.hold_until = MonoTime::FromMicros(hold.until_us);
}

void SignalGroup(State& state, const SignalFrame& signal) {
  const Group* group = state.Find(signal.group);
  if (group != nullptr && signal.signal > 0 && signal.signal < NSIG) {
    SendSignal(*group, signal.signal);
  }
}

void AdvanceGroups(State& state, MonoTime now) {
  for (auto& [serial, group] : state.groups) Advance(state, serial, group, now);
  Scan(state, now);
  for (auto it = state.groups.begin(); it != state.groups.end();) {
    if (IsOver(state, it->first, it->second, now)) {
      Finish(state, it->first, it->second);
      it = state.groups.erase(it);
    } else {
      ++it;
    }
  }
}

MonoTime NextDeadline(const State& state) {
  MonoTime next = state.keeping.until;
  for (const auto& [serial, group] : state.groups) {
    const Ending& ending = group.ending;
    if (!ending.killed) next = std::min(next, ending.hold_until);
    if (!ending.asked) continue;
    if (!ending.killed) next = std::min(next, ending.kill_at);
    next = std::min({next, ending.scan_at, ending.give_up_at});
  }
  return next;
}

bool ShutDown(State& state) {
  const MonoTime now = MonoNow();
  const MonoTime end = now + kShutDownLimit;
  bool scan = !state.cgroups.usable();
  for (auto& [serial, group] : state.groups) {
    Kill(state, serial, group, now);
    scan = scan || NeedsScan(group);
  }
  state.cgroups.KillAll();
  const std::string marker = absl::StrCat(state.id, ".");
  bool done = false;
  while (!done && MonoNow() < end) {
    ReapAll(state);
    const bool left = scan && !KillProcesses([&](const ProcessInfo& process) {
                                 return process.parent == getpid() ||
                                        absl::StartsWith(ReadMarker(process.pid), marker);
                               }).empty();
    const bool childless = !HasChildren();
    const bool removed = state.cgroups.RemoveAll();
    done = childless && !left && removed;
    scan = scan || (removed && !childless);
    if (!done) poll(nullptr, 0, kShutDownPollMs);
  }
  return done;
}

}  // namespace cadre::supervisor
