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
#include "agent/supervisor/groups.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/process_scan.h"
#include "base/check.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

constexpr int kShutDownPollMs = 2;

// Whether the process is a script's shell, which passes no signal on to the child it waits for.
bool IsShell(pid_t pid) {
  std::error_code error;
  const std::string program =
      std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error).filename();
  static constexpr absl::string_view kShells[] = {"ash", "bash",  "busybox", "csh", "dash", "fish",
                                                  "ksh", "ksh93", "mksh",    "sh",  "tcsh", "zsh"};
  return std::find(std::begin(kShells), std::end(kShells), program) != std::end(kShells);
}

// Signals the process alone: it decides about its children, and a rank that saves its state needs
// its data loaders for that. `to_all`: signals its process group.
void SendSignal(const Group& group, int signal, bool to_all) {
  if (group.exited || group.pid == 0) return;
  // The group does not exist until the process has made its session.
  if (to_all && kill(-group.pid, signal) == 0) return;
  if (!group.pidfd.ok() || SignalPidfd(group.pidfd.get(), signal) != 0) kill(group.pid, signal);
}

// Whether the process group that has the rest of the grace still exists. An unrelated process group
// with the same number would be mistaken for it until the grace is over.
bool InGracePeriod(const Group& group) {
  return group.stop_state.died_of_term && (kill(-group.pid, 0) == 0 || errno == EPERM);
}

// Whether its remaining processes cannot be found by a cgroup.
bool NeedsScan(const Group& group) { return group.pid != 0 && !group.in_cgroup; }

void Kill(State& state, uint64_t serial, Group& group, MonoTime now) {
  StopState& stop_state = group.stop_state;
  if (!group.exited && group.pid != 0) {
    kill(-group.pid, SIGKILL);
    // It may be moving from one process group to the other.
    if (group.pidfd.ok()) SignalPidfd(group.pidfd.get(), SIGKILL);
  }
  state.cgroups.Kill(serial);
  if (stop_state.killed) return;
  stop_state.killed = true;
  stop_state.report_at = now + kUnkillableAfter;
  stop_state.report_all_at = now + kRunnableUnkillableAfter;
  if (NeedsScan(group)) stop_state.scan_at = now;
}

// Whether processes that cannot be attributed count as this group's. Standby groups are excepted,
// as they have hardly begun.
bool IsLast(const State& state, uint64_t serial) {
  return std::all_of(state.groups.begin(), state.groups.end(), [serial](const auto& other) {
    return other.first == serial || other.second.standby.ok();
  });
}

// Whether a session with the number of the group's process can be its own. The kernel does not
// reuse the number while anything is left in the session: if a process has it again, that process
// is new, and so is its session.
bool CanHaveItsSession(const Group& group) {
  return !group.exited || !InspectProcess(group.pid).has_value();
}

// By the serial number of their group.
using Survivors = std::map<uint64_t, std::set<pid_t>>;

// Kills what the processes of these groups left behind; returns what it found. Children of killed
// processes are reparented to us in turn, so repeating this finds the whole tree. `orphans`:
// unattributable orphans of ours count as the first group's.
Survivors KillSurvivors(const State& state, const std::set<uint64_t>& serials, bool orphans) {
  CADRE_CHECK(!serials.empty(), "survivors of no group are searched for");
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

// What SIGKILL has not ended for seconds may take for ever, and a scan is slow.
MonoTime NextScan(const Group& group, MonoTime now) {
  return now + (group.stop_state.unkillable.empty() ? kScanInterval : kUnkillableScanInterval);
}

// Scans for all groups at once, because a scan is slow.
void Scan(State& state, MonoTime now) {
  std::set<uint64_t> due;
  for (const auto& [serial, group] : state.groups) {
    if (group.exited && group.stop_state.scan_at <= now) due.insert(serial);
  }
  if (due.empty()) return;
  const Survivors left = KillSurvivors(state, due, false);
  for (const uint64_t serial : due) {
    Group& group = state.groups.at(serial);
    group.stop_state.scan_at = left.count(serial) != 0 ? NextScan(group, now) : MonoTime::Never();
  }
}

// A process that has left its cgroup, as with sudo and su if systemd gives them a session of their
// own, is reparented to us at the latest when its parent ends.
bool HasChildren() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

// Whether the process is known to be another group's.
bool IsUnkillableOfAnother(const State& state, uint64_t serial, pid_t pid) {
  return std::any_of(state.groups.begin(), state.groups.end(), [&](const auto& other) {
    return other.first != serial && other.second.stop_state.unkillable.count(pid) != 0;
  });
}

// Of the children that we did not start, returns those that are in exit(2): they have left their
// cgroup, and nothing shows any more to which group they belong. SIGCHLD will report their end.
// `others`: whether there are any that are not exiting.
std::set<pid_t> ExitingOrphans(const State& state, uint64_t serial, bool* others) {
  std::set<pid_t> exiting;
  for (const pid_t child : OwnChildren()) {
    if (state.IsOurs(child) || IsUnkillableOfAnother(state, serial, child)) continue;
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

// Whether one of the children that we did not start is, or may be, this group's.
bool HasOrphans(State& state, uint64_t serial, Group& group, MonoTime now) {
  ReapAll(state);
  if (!HasChildren()) return false;
  bool others = false;
  if (!ExitingOrphans(state, serial, &others).empty()) return true;
  if (!others || KillSurvivors(state, {serial}, IsLast(state, serial)).empty()) return false;
  group.stop_state.scan_at = NextScan(group, now);
  return true;
}

// Whether a process of the group may be left.
bool IsPopulated(State& state, uint64_t serial, Group& group, MonoTime now) {
  StopState& stop_state = group.stop_state;
  if (!stop_state.cgroup_events.ok()) {
    stop_state.cgroup_events = state.cgroups.Watch(serial);
    if (stop_state.cgroup_events.ok()) {
      state.Watch(stop_state.cgroup_events.get(), Source::kCgroup, serial, EPOLLPRI);
    }
  }
  // A process cloned into the cgroup while that was being killed is killed too.
  const bool left =
      stop_state.scan_at != MonoTime::Never() || CgroupTree::Populated(stop_state.cgroup_events);
  return left || HasOrphans(state, serial, group, now);
}

void Finish(State& state, uint64_t serial, Group& group) {
  CADRE_CHECK(group.exited && group.reported, "group ", group.id, " is gone without a report");
  if (group.stop_state.cgroup_events.ok()) state.Unwatch(group.stop_state.cgroup_events.get());
  group.stop_state.cgroup_events.Reset();
  PassOnOutput(state, group);
  for (CapturedStream* stream : {&group.standard_output, &group.standard_error, &group.progress}) {
    CloseStream(state, *stream);
  }
  state.by_pid.erase(group.pid);
  state.by_id.erase(group.id);
  state.cgroups.Remove(serial);
  state.outbox.Send(AllGoneFrame{group.id});
  if (state.adoption.keep_time > absl::ZeroDuration()) state.adoption.ended.push_back(group.end);
}

// The processes that are neither reaped nor killed so far.
std::set<pid_t> RemainingProcesses(const State& state, uint64_t serial, const Group& group) {
  bool others = false;
  std::set<pid_t> left = ExitingOrphans(state, serial, &others);
  for (const pid_t pid : state.cgroups.Processes(serial)) left.insert(pid);
  if (!group.exited) left.insert(group.pid);
  left.merge(KillSurvivors(state, {serial}, IsLast(state, serial))[serial]);
  return left;
}

// Reports what SIGKILL has not ended. The group is still waited for.
void ReportUnkillable(State& state, uint64_t serial, Group& group, MonoTime now) {
  StopState& stop_state = group.stop_state;
  CADRE_CHECK(stop_state.killed, "group ", group.id, " is reported before it is killed");
  stop_state.report_at = MonoTime::Never();
  const size_t reported = stop_state.unkillable.size();
  RemainsFrame frame;
  frame.group = group.id;
  for (const pid_t pid : RemainingProcesses(state, serial, group)) {
    const auto process = InspectKilled(pid);
    if (!process.has_value()) continue;
    if (process->will_end && now < stop_state.report_all_at) {
      stop_state.report_at = now + kUnkillableScanInterval;
      continue;
    }
    stop_state.unkillable.insert(pid);
    frame.processes.push_back({pid, process->state, process->kernel_function});
  }
  const bool changed = !stop_state.report_new_only || stop_state.unkillable.size() > reported;
  stop_state.report_new_only = stop_state.report_at != MonoTime::Never();
  if (!frame.processes.empty() && changed) state.outbox.Send(frame);
}

// Whether all of these will end without further action, as far as can be told at `killed` and a
// while after it. False if there are none.
bool EndsByItself(const std::set<pid_t>& left, MonoTime killed) {
  return !left.empty() && MonoNow() < killed + kRunnableUnkillableAfter &&
         std::all_of(left.begin(), left.end(), [](pid_t pid) {
           const auto process = InspectKilled(pid);
           return !process.has_value() || process->will_end;
         });
}

// Kills the group when it is due.
void Advance(State& state, uint64_t serial, Group& group, MonoTime now) {
  StopState& stop_state = group.stop_state;
  if (BootNow() >= stop_state.hold_until) {
    stop_state.requested = true;
    stop_state.kill_at = std::min(stop_state.kill_at, now);
  }
  // A group that has exited by itself needs no more of the grace.
  const bool out = group.exited && !InGracePeriod(group);
  const bool due = stop_state.requested && (out || now >= stop_state.kill_at);
  if (due && !stop_state.killed) Kill(state, serial, group, now);
}

bool IsOver(State& state, uint64_t serial, Group& group, MonoTime now) {
  // Only then, because the search for what is left kills it.
  if (group.stop_state.killed && group.reported && !IsPopulated(state, serial, group, now)) {
    return true;
  }
  if (now >= group.stop_state.report_at) ReportUnkillable(state, serial, group, now);
  return false;
}

}  // namespace

void StopGroup(State& state, const StopFrame& stop, MonoTime now) {
  Group* group = state.Find(stop.group);
  if (group == nullptr) return state.outbox.Send(AllGoneFrame{stop.group});
  group->stop_state.kill_at =
      std::min(group->stop_state.kill_at, now + absl::Milliseconds(stop.grace_ms));
  if (!group->stop_state.requested && stop.grace_ms > 0) {
    // SIGCONT follows SIGTERM, because a stopped process acts on no other signal.
    const bool shell = IsShell(group->pid);
    for (const int signal : {SIGTERM, SIGCONT}) SendSignal(*group, signal, shell);
    group->stop_state.process_only = !shell;
    group->stop_state.term_sent = !group->exited;
  }
  group->stop_state.requested = true;
  // The Stop may come from another agent, so the report is repeated.
  if (!group->stop_state.unkillable.empty()) {
    group->stop_state.report_at = now;
    group->stop_state.report_new_only = false;
  }
}

void HoldGroup(State& state, const HoldFrame& hold) {
  Group* group = state.Find(hold.group);
  if (group == nullptr) return;
  group->stop_state.hold_until = MonoTime::FromMicros(hold.until_us);
}

void SignalGroup(State& state, const SignalFrame& signal) {
  const Group* group = state.Find(signal.group);
  if (group != nullptr && signal.signal > 0 && signal.signal < NSIG) {
    SendSignal(*group, signal.signal, !signal.process_only && IsShell(group->pid));
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
    if (!group.stop_state.killed) next = std::min(next, group.stop_state.hold_until);
  }
  if (next == state.hold_armed) return;
  itimerspec at = {};
  if (next != MonoTime::Never()) {
    // The value 0 would disarm the timer.
    const int64_t us = std::max<int64_t>(1, next.micros());
    at.it_value = {us / 1000000, us % 1000000 * 1000};
  }
  timerfd_settime(state.hold_timer.get(), TFD_TIMER_ABSTIME, &at, nullptr);
  state.hold_armed = next;
}

MonoTime NextDeadline(const State& state) {
  MonoTime next = state.adoption.until;
  for (const auto& [serial, group] : state.groups) {
    const StopState& stop_state = group.stop_state;
    if (!stop_state.requested) continue;
    if (!stop_state.killed) next = std::min(next, stop_state.kill_at);
    next = std::min({next, stop_state.scan_at, stop_state.report_at});
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
  const auto remaining_processes = [&is_ours] {
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
    if (MonoNow() >= now + kShutDownLimit && !EndsByItself(remaining_processes(), now)) break;
    poll(nullptr, 0, kShutDownPollMs);
  }
  std::string left;
  for (const pid_t pid : remaining_processes()) {
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
