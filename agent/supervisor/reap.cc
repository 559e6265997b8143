#include "agent/supervisor/reap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "agent/supervisor/processes/child.h"
#include "base/clock.h"
#include "base/own_files.h"

namespace cadre::supervisor {
namespace {

constexpr int kShellSaysKilled = 128 + SIGKILL;

// The worker may have made anything of this path: only a regular file is read, and without waiting.
std::string ReadErrorFile(const std::string& path) {
  std::string text;
  if (path.empty()) return text;
  const absl::StatusOr<ScopedFd> fd = OpenOwnFile(path, O_RDONLY);
  if (!fd.ok()) return text;
  char chunk[4096];
  while (text.size() < kMaxErrorFileBytes) {
    const ssize_t n = read(fd->get(), chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(chunk, static_cast<size_t>(n));
  }
  return text;
}

// It ended because a process that it had started was killed: a shell's program, or a process of
// PyTorch's data loader.
bool FailedForAKilledChild(const ExitedFrame& end) {
  return end.exit_code == kShellSaysKilled ||
         ((end.exit_code != 0 || end.signal != 0) &&
          absl::StrContains(end.last_lines, "DataLoader worker (pid") &&
          absl::StrContains(end.last_lines, "is killed by signal: Killed"));
}

void FillCause(const State& state, uint64_t serial, const siginfo_t& info, Group& group) {
  if (info.si_code == CLD_EXITED) {
    group.end.exit_code = info.si_status;
  } else {
    group.end.signal = info.si_status;
    group.end.core_dumped = info.si_code == CLD_DUMPED;
  }
  // The counter alone may have risen for another group, and SIGKILL alone may be anybody's.
  group.end.out_of_memory = (group.end.signal == SIGKILL || FailedForAKilledChild(group.end)) &&
                            !group.ending.killed &&
                            state.cgroups.OutOfMemoryKills(serial) > group.memory_kills_before;
  if (group.end.out_of_memory && state.cgroups.LimitReached() > group.limit_reached_before) {
    group.end.memory_limit = state.cgroups.MemoryLimit();
  }
}

// Whoever hears of the end finds in the files what the process wrote.
void AwaitFiles(State& state, Group& group, MonoTime now) {
  if (group.error_file.empty() && group.standard_output.log() == nullptr &&
      group.standard_error.log() == nullptr) {
    return ReportExit(state, group);
  }
  group.last_files = std::make_shared<LastFiles>();
  group.report_by = state.files.StandsStill(now) ? now : now + kLastFilesLimit;
  state.files.Post(
      [last = group.last_files, path = group.error_file] {
        last->error_json = ReadErrorFile(path);
        last->done = true;
      },
      0, true);
}

}  // namespace

void HandleExecStatus(State& state, uint64_t serial) {
  const auto found = state.groups.find(serial);
  if (found == state.groups.end() || !found->second.exec_status.ok()) return;
  Group& group = found->second;
  ChildFailure failure;
  const ssize_t n = read(group.exec_status.get(), &failure, sizeof(failure));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  state.Unwatch(group.exec_status.get());
  group.exec_status.Reset();
  if (n == static_cast<ssize_t>(sizeof(failure))) {
    group.end.exec_step = NameOf(failure.step);
    group.end.exec_errno = failure.error;
    return;
  }
  state.outbox.Send(StartedFrame{group.id, group.pid, 0, false, group.why_plain});
}

void HandleExit(State& state, uint64_t serial) {
  const auto found = state.groups.find(serial);
  if (found == state.groups.end() || found->second.exited) return;
  Group& group = found->second;
  siginfo_t info = {};
  const auto pid = static_cast<id_t>(group.pid);
  if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
  HandleExecStatus(state, serial);
  Ending& ending = group.ending;
  ending.outlived =
      ending.warned && !ending.killed && info.si_code != CLD_EXITED && info.si_status == SIGTERM;
  if (!ending.outlived) {
    kill(-group.pid, SIGKILL);
  } else if (ending.alone) {
    for (const int signal : {SIGTERM, SIGCONT}) kill(-group.pid, signal);
  }
  PassOnOutput(state, group);

  group.end.last_lines = group.standard_error.Tail();
  if (group.end.last_lines.empty()) group.end.last_lines = group.standard_output.Tail();
  FillCause(state, serial, info, group);
  group.exited = true;
  AwaitFiles(state, group, MonoNow());

  state.by_pid.erase(group.pid);
  if (group.pidfd.ok()) state.Unwatch(group.pidfd.get());
  group.pidfd.Reset();
  waitid(P_PID, pid, &info, WEXITED | WNOHANG);
}

void AdvanceExits(State& state, MonoTime now) {
  for (auto& [serial, group] : state.groups) {
    if (group.last_files == nullptr) continue;
    const bool done = group.last_files->done;
    if (!done && now < group.report_by) continue;
    if (done) group.end.error_json = std::move(group.last_files->error_json);
    group.last_files = nullptr;
    ReportExit(state, group);
  }
}

MonoTime NextExitDeadline(const State& state) {
  MonoTime next = MonoTime::Never();
  for (const auto& [serial, group] : state.groups) {
    if (group.last_files != nullptr) next = std::min(next, group.report_by);
  }
  return next;
}

void ReapAll(State& state) {
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 || info.si_pid == 0) {
      return;
    }
    const auto serial = state.by_pid.find(info.si_pid);
    if (serial != state.by_pid.end()) {
      HandleExit(state, serial->second);
    } else {
      waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG | __WALL);
    }
  }
}

}  // namespace cadre::supervisor
