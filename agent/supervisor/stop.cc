#include "agent/supervisor/stop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/supervisor/hold_clock.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/reap.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

constexpr int kShutDownPollMs = 2;

// Whether the process is a script's shell: it passes no signal on to what it waits for.
bool IsShell(pid_t pid) {
  std::error_code error;
  const std::string program =
      std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error).filename();
  static constexpr absl::string_view kShells[] = {"ash", "bash",  "busybox", "csh", "dash", "fish",
                                                  "ksh", "ksh93", "mksh",    "sh",  "tcsh", "zsh"};
  return std::find(std::begin(kShells), std::end(kShells), program) != std::end(kShells);
}

// To the process alone: what it has started is its own affair, and a rank that saves its state
// needs its data loaders for that. `to_all`: to its process group.
void SendSignal(const Group& group, int signal, bool to_all) {
  if (group.exited || group.pid == 0) return;
  // Before it has made its session there is no group.
  if (to_all && kill(-group.pid, signal) == 0) return;
  if (!group.pidfd.ok() || SignalPidfd(group.pidfd.get(), signal) != 0) kill(group.pid, signal);
}

// Whether what has the rest of its process's grace is still there. A stranger with the process's
// number would be taken for it until that is over.
bool UsesTheGrace(const Group& group) {
  return group.ending.outlived && (kill(-group.pid, 0) == 0 || errno == EPERM);
}

// Whether its cgroup, where it has one, does not tell what is left.
bool NeedsScan(const Group& group) { return group.pid != 0 && !group.in_cgroup; }

void Kill(State& state, uint64_t serial, Group& group, MonoTime now) {
  Ending& ending = group.ending;
  if (!group.exited && group.pid != 0) {
    kill(-group.pid, SIGKILL);
    // It may be on its way from one process group to the other.
    if (group.pidfd.ok()) SignalPidfd(group.pidfd.get(), SIGKILL);
  }
  state.cgroups.Kill(serial);
  if (ending.killed) return;
  ending.killed = true;
  ending.report_at = now + kRemainsAfter;
  ending.told_by = now + kRunningRemainsAfter;
  if (NeedsScan(group)) ending.scan_at = now;
}

// Whether what nobody can be told to own is this group's. One that stands by has hardly begun.
bool IsLast(const State& state, uint64_t serial) {
  return std::all_of(state.groups.begin(), state.groups.end(), [serial](const auto& other) {
    return other.first == serial || other.second.standby.ok();
  });
}

// Whether the session that has the number of the group's process can be its own. The kernel gives
// that number to nobody else while anything is left in it: once there is a process with it again,
// that is a newcomer, and so is its session.
bool CanHaveItsSession(const Group& group) {
  return !group.exited || !InspectProcess(group.pid).has_value();
}

// By serial number of their group.
using Survivors = std::map<uint64_t, std::set<pid_t>>;

// Kills what the processes of these groups left behind; returns what it found. Children of what is
// killed come to us in turn, so repeating this finds the whole tree. `orphans`: what came to us and
// cannot be told to be anybody's counts as the first one's.
Survivors KillSurvivors(const State& state, const std::set<uint64_t>& serials, bool orphans) {
  std::map<pid_t, uint64_t> sessions;
  std::map<std::string, uint64_t> markers;
  for (const uint64_t serial : serials) {
    const Group& group = state.groups.at(serial);
    if (group.pid != 0) sessions[group.pid] = serial;
    markers[state.MarkerOf(serial)] = serial;
  }
  Survivors found;
  KillProcesses([&](const ProcessInfo& process) {
    const auto session = sessions.find(process.session);
    if (session != sessions.end() && CanHaveItsSession(state.groups.at(session->second))) {
      return found[session->second].insert(process.pid), true;
    }
    const auto marker = markers.find(ReadMarker(process.pid));
    if (marker != markers.end()) return found[marker->second].insert(process.pid), true;
    if (!orphans || process.parent != getpid() || state.IsOurs(process.pid)) return false;
    return found[*serials.begin()].insert(process.pid), true;
  });
  return found;
}

// What SIGKILL has not ended for seconds may take for ever, and a scan takes a while.
MonoTime NextScan(const Group& group, MonoTime now) {
  return now + (group.ending.remains.empty() ? kScanInterval : kScanForRemains);
}

// For all groups at once: it takes a while.
void Scan(State& state, MonoTime now) {
  std::set<uint64_t> due;
  for (const auto& [serial, group] : state.groups) {
    if (group.exited && group.ending.scan_at <= now) due.insert(serial);
  }
  if (due.empty()) return;
  const Survivors left = KillSurvivors(state, due, false);
  for (const uint64_t serial : due) {
    Group& group = state.groups.at(serial);
    group.ending.scan_at = left.count(serial) != 0 ? NextScan(group, now) : MonoTime::Never();
  }
}

// What has left its cgroup, as sudo and su do where systemd gives them a session of their own,
// comes to us at the latest when its parent ends.
bool HasChildren() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

// It is known to be another group's.
bool RemainsOfAnother(const State& state, uint64_t serial, pid_t pid) {
  return std::any_of(state.groups.begin(), state.groups.end(), [&](const auto& other) {
    return other.first != serial && other.second.ending.remains.count(pid) != 0;
  });
}

// Of the children that we did not start, those that are on their way through exit(2): they have
// left their cgroup, and nothing tells any more whose they are. SIGCHLD will tell their end.
// `others`: whether there are any that are not.
std::set<pid_t> ExitingOrphans(const State& state, uint64_t serial, bool* others) {
  std::set<pid_t> exiting;
  for (const pid_t child : OwnChildren()) {
    if (state.IsOurs(child) || RemainsOfAnother(state, serial, child)) continue;
    const auto process = InspectProcess(child);
    if (!process.has_value()) continue;
    if (process->exiting) {
      exiting.insert(child);
    } else {
      *others = true;
    }
  }
  return exiting;
}

// Whether one of the children that we did not start is this group's, or may be.
bool HasOrphans(State& state, uint64_t serial, Group& group, MonoTime now) {
  ReapAll(state);
  if (!HasChildren()) return false;
  bool others = false;
  if (!ExitingOrphans(state, serial, &others).empty()) return true;
  if (!others || KillSurvivors(state, {serial}, IsLast(state, serial)).empty()) return false;
  group.ending.scan_at = NextScan(group, now);
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
  return left || HasOrphans(state, serial, group, now);
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
  if (state.keeping.time > absl::ZeroDuration()) state.keeping.ended.push_back(group.end);
}

// What nobody has reaped or killed so far.
std::set<pid_t> WhatIsLeft(const State& state, uint64_t serial, const Group& group) {
  bool others = false;
  std::set<pid_t> left = ExitingOrphans(state, serial, &others);
  for (const pid_t pid : state.cgroups.Processes(serial)) left.insert(pid);
  if (!group.exited) left.insert(group.pid);
  left.merge(KillSurvivors(state, {serial}, IsLast(state, serial))[serial]);
  return left;
}

// Says what SIGKILL has not ended. The group is waited for all the same.
void ReportRemains(State& state, uint64_t serial, Group& group, MonoTime now) {
  Ending& ending = group.ending;
  ending.report_at = MonoTime::Never();
  const size_t told = ending.remains.size();
  RemainsFrame frame;
  frame.group = group.id;
  for (const pid_t pid : WhatIsLeft(state, serial, group)) {
    const auto process = InspectKilled(pid);
    if (!process.has_value()) continue;
    if (process->ends && now < ending.told_by) {
      ending.report_at = now + kScanForRemains;
      continue;
    }
    ending.remains.insert(pid);
    frame.processes.push_back({pid, process->state, process->kernel_function});
  }
  const bool news = !ending.looks_again || ending.remains.size() > told;
  ending.looks_again = ending.report_at != MonoTime::Never();
  if (!frame.processes.empty() && news) state.outbox.Send(frame);
}

// Whether all of these will be gone though nothing more is done, as far as can be told at `killed`
// and a while after it. No: there are none.
bool EndsByItself(const std::set<pid_t>& left, MonoTime killed) {
  return !left.empty() && MonoNow() < killed + kRunningRemainsAfter &&
         std::all_of(left.begin(), left.end(), [](pid_t pid) {
           const auto process = InspectKilled(pid);
           return !process.has_value() || process->ends;
         });
}

// Kills the group when it is time to.
void Advance(State& state, uint64_t serial, Group& group, MonoTime now) {
  Ending& ending = group.ending;
  if (BootNow() >= ending.hold_until) {
    ending.asked = true;
    ending.kill_at = std::min(ending.kill_at, now);
  }
  // Who ended by itself needs no more of the grace.
  const bool out = group.exited && !UsesTheGrace(group);
  const bool due = ending.asked && (out || now >= ending.kill_at);
  if (due && !ending.killed) Kill(state, serial, group, now);
}

bool IsOver(State& state, uint64_t serial, Group& group, MonoTime now) {
  // Only then: looking for what is left kills it.
  if (group.ending.killed && group.reported && !IsPopulated(state, serial, group, now)) return true;
  if (now >= group.ending.report_at) ReportRemains(state, serial, group, now);
  return false;
}

}  // namespace

void StopGroup(State& state, const StopFrame& stop, MonoTime now) {
  Group* group = state.Find(stop.group);
  if (group == nullptr) return state.outbox.Send(AllGoneFrame{stop.group});
  group->ending.kill_at = std::min(group->ending.kill_at, now + absl::Milliseconds(stop.grace_ms));
  if (!group->ending.asked && stop.grace_ms > 0) {
    // SIGCONT after SIGTERM: a stopped process acts on nothing else.
    const bool shell = IsShell(group->pid);
    for (const int signal : {SIGTERM, SIGCONT}) SendSignal(*group, signal, shell);
    group->ending.alone = !shell;
    group->ending.warned = !group->exited;
  }
  group->ending.asked = true;
  // Who asks may be another agent.
  if (!group->ending.remains.empty()) {
    group->ending.report_at = now;
    group->ending.looks_again = false;
  }
}

void HoldGroup(State& state, const HoldFrame& hold) {
  Group* group = state.Find(hold.group);
  if (group == nullptr) return;
  group->ending.hold_until = HoldMeant(MonoTime::FromMicros(hold.until_us), state.frames_version);
}

void SignalGroup(State& state, const SignalFrame& signal) {
  const Group* group = state.Find(signal.group);
  if (group != nullptr && signal.signal > 0 && signal.signal < NSIG) {
    SendSignal(*group, signal.signal, IsShell(group->pid));
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

void SetHoldTimer(State& state) {
  MonoTime next = MonoTime::Never();
  for (const auto& [serial, group] : state.groups) {
    if (!group.ending.killed) next = std::min(next, group.ending.hold_until);
  }
  if (next == state.hold_armed) return;
  itimerspec at = {};
  if (next != MonoTime::Never()) {
    // 0 would be never.
    const int64_t us = std::max<int64_t>(1, next.micros());
    at.it_value = {us / 1000000, us % 1000000 * 1000};
  }
  timerfd_settime(state.hold_timer.get(), TFD_TIMER_ABSTIME, &at, nullptr);
  state.hold_armed = next;
}

MonoTime NextDeadline(const State& state) {
  MonoTime next = state.keeping.until;
  for (const auto& [serial, group] : state.groups) {
    const Ending& ending = group.ending;
    if (!ending.asked) continue;
    if (!ending.killed) next = std::min(next, ending.kill_at);
    next = std::min({next, ending.scan_at, ending.report_at});
  }
  return next;
}

absl::Status ShutDown(State& state) {
  const MonoTime now = MonoNow();
  bool scan = !state.cgroups.usable();
  for (auto& [serial, group] : state.groups) {
    Kill(state, serial, group, now);
    scan = scan || NeedsScan(group);
  }
  state.cgroups.KillAll();
  const auto is_ours = [marker = absl::StrCat(state.id, ".")](const ProcessInfo& process) {
    return process.parent == getpid() || absl::StartsWith(ReadMarker(process.pid), marker);
  };
  const auto what_is_left = [&is_ours] {
    const std::vector<pid_t> children = OwnChildren();
    std::set<pid_t> left(children.begin(), children.end());
    for (const pid_t pid : KillProcesses(is_ours)) left.insert(pid);
    return left;
  };
  while (true) {
    ReapAll(state);
    const bool left = scan && !KillProcesses(is_ours).empty();
    const bool childless = !HasChildren();
    const bool removed = state.cgroups.RemoveAll();
    if (childless && !left && removed) return absl::OkStatus();
    scan = scan || (removed && !childless);
    if (MonoNow() >= now + kShutDownLimit && !EndsByItself(what_is_left(), now)) break;
    poll(nullptr, 0, kShutDownPollMs);
  }
  std::string left;
  for (const pid_t pid : what_is_left()) {
    const auto process = InspectKilled(pid);
    if (!process.has_value()) continue;
    const std::string& where = process->kernel_function;
    absl::StrAppend(&left, "; pid ", pid, " is in ", where.empty() ? "the kernel" : where,
                    " (state ", std::string(1, process->state), ")");
  }
  return absl::DeadlineExceededError(
      absl::StrCat("processes of the workers outlive SIGKILL", left));
}

}  // namespace cadre::supervisor
