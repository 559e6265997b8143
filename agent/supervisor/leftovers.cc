#include "agent/supervisor/leftovers.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/process_scan.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

constexpr int kPollMs = 2;

// Reaps it where it is our child. Where it is not, its parent may itself be dying, and the process
// comes to us only after that: then it still counts as there.
bool IsReaped(pid_t process, const std::set<pid_t>& killed) {
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | __WALL) == 0) {
    return info.si_pid != 0;
  }
  const auto left = InspectProcess(process);
  if (!left.has_value()) return true;
  return left->parent != getpid() && killed.count(left->parent) == 0;
}

// False: something is left. `alive`: of it, what has not ended.
bool KillOnce(Leftovers& leftovers, std::set<pid_t>* alive) {
  std::set<pid_t>& killed = leftovers.killed;
  bool left = false;
  alive->clear();
  if (!leftovers.cgroup.empty()) {
    for (const pid_t pid : CgroupProcesses(leftovers.cgroup)) alive->insert(pid);
    KillCgroup(leftovers.cgroup);
    left = !RemoveCgroup(leftovers.cgroup);
  }
  const std::string marker = absl::StrCat(leftovers.supervisor_id, ".");
  std::set<pid_t> seen;  // sessions with a process
  for (const pid_t pid : KillProcesses([&](const ProcessInfo& process) {
         if (leftovers.sessions.count(process.session) > 0) {
           seen.insert(process.session);
           return true;
         }
         return absl::StartsWith(ReadMarker(process.pid), marker);
       })) {
    alive->insert(pid);
    left = true;
  }
  killed.insert(alive->begin(), alive->end());
  for (const auto& [session, group] : leftovers.sessions) killed.insert(session);
  for (auto it = killed.begin(); it != killed.end();) {
    const bool reaped = IsReaped(*it, killed);
    left = left || !reaped;
    it = reaped ? killed.erase(it) : std::next(it);
  }
  // The number of a session that is gone may be a stranger's by the next look.
  for (auto it = leftovers.sessions.begin(); it != leftovers.sessions.end();) {
    const bool gone = killed.count(it->first) == 0 && seen.count(it->first) == 0;
    it = gone ? leftovers.sessions.erase(it) : std::next(it);
  }
  return !left;
}

}  // namespace

void Leftovers::Note(const Frame& frame) {
  if (const auto* ready = std::get_if<ReadyFrame>(&frame)) cgroup = ready->cgroup;
  if (const auto* started = std::get_if<StartedFrame>(&frame)) {
    sessions[started->pid] = started->group;
  }
  if (const auto* exited = std::get_if<ExitedFrame>(&frame)) sessions.erase(exited->pid);
}

std::vector<RemainsFrame> KillLeftovers(Leftovers& leftovers, absl::Duration limit) {
  std::set<pid_t> alive;
  const MonoTime end = MonoNow() + limit;
  while (!KillOnce(leftovers, &alive)) {
    if (MonoNow() >= end) break;
    poll(nullptr, 0, kPollMs);
  }
  std::map<uint64_t, RemainsFrame> remains;
  for (const pid_t pid : alive) {
    const auto process = InspectProcess(pid);
    if (!process.has_value() || process->state == 'Z') continue;
    const auto session = leftovers.sessions.find(process->session);
    const uint64_t group = session == leftovers.sessions.end() ? 0 : session->second;
    RemainsFrame& frame = remains[group];
    frame.group = group;
    frame.processes.push_back({pid, process->state, KernelFunction(absl::StrCat("/proc/", pid))});
  }
  std::vector<RemainsFrame> frames;
  for (auto& [group, frame] : remains) frames.push_back(std::move(frame));
  return frames;
}

}  // namespace cadre::supervisor
