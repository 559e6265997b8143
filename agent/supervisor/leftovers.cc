#include "agent/supervisor/leftovers.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iterator>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/process_scan.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(1);
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

// False: something is left. `killed`: so far, and not reaped.
bool KillOnce(const Leftovers& leftovers, std::set<pid_t>& killed) {
  bool left = false;
  if (!leftovers.cgroup.empty()) {
    for (const pid_t pid : CgroupProcesses(leftovers.cgroup)) killed.insert(pid);
    KillCgroup(leftovers.cgroup);
    left = !RemoveCgroup(leftovers.cgroup);
  }
  const std::string marker = absl::StrCat(leftovers.supervisor_id, ".");
  for (const pid_t pid : KillProcesses([&](const ProcessInfo& process) {
         return leftovers.sessions.count(process.session) > 0 ||
                absl::StartsWith(ReadMarker(process.pid), marker);
       })) {
    killed.insert(pid);
    left = true;
  }
  killed.insert(leftovers.sessions.begin(), leftovers.sessions.end());
  for (auto it = killed.begin(); it != killed.end();) {
    const bool reaped = IsReaped(*it, killed);
    left = left || !reaped;
    it = reaped ? killed.erase(it) : std::next(it);
  }
  return !left;
}

}  // namespace

void Leftovers::Note(const Frame& frame) {
  if (const auto* ready = std::get_if<ReadyFrame>(&frame)) cgroup = ready->cgroup;
  if (const auto* started = std::get_if<StartedFrame>(&frame)) sessions.insert(started->pid);
  if (const auto* exited = std::get_if<ExitedFrame>(&frame)) sessions.erase(exited->pid);
}

void KillLeftovers(const Leftovers& leftovers) {
  std::set<pid_t> killed;
  const MonoTime end = MonoNow() + kLimit;
  while (!KillOnce(leftovers, killed) && MonoNow() < end) poll(nullptr, 0, kPollMs);
}

}  // namespace cadre::supervisor
