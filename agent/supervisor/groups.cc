#include "agent/supervisor/groups.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/spawn.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/own_files.h"

namespace cadre::supervisor {
namespace {

epoll_event Tagged(Source source, uint64_t serial, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = serial << 8 | static_cast<uint8_t>(source);
  return event;
}

}  // namespace

Group* State::Find(uint64_t group_id) {
  const auto serial = by_id.find(group_id);
  return serial == by_id.end() ? nullptr : &groups.at(serial->second);
}

std::string State::MarkerOf(uint64_t serial) const { return absl::StrCat(id, ".", serial); }

void State::Watch(int fd, Source source, uint64_t serial, uint32_t events) const {
  epoll_event event = Tagged(source, serial, events);
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event);
}

void State::Rewatch(int fd, Source source, uint64_t serial, uint32_t events) const {
  epoll_event event = Tagged(source, serial, events);
  epoll_ctl(epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

// Closing the descriptor is not enough: a child between fork and exec still holds a copy.
void State::Unwatch(int fd) const { epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr); }

void ReportExit(State& state, Group& group) {
  CADRE_CHECK(!group.reported, "the exit of group ", group.id, " is reported twice");
  group.end.group = group.id;
  group.end.pid = group.pid;
  group.exited = group.reported = true;
  state.outbox.Send(group.end);
}

void PassOnOutput(State& state, Group& group) {
  for (CapturedStream* stream : {&group.standard_output, &group.standard_error, &group.progress}) {
    stream->ReadAvailable(state.outbox);
    stream->FlushRest(state.outbox);
  }
}

void CloseStream(State& state, CapturedStream& stream) {
  if (!stream.open()) return;
  if (!stream.paused) state.Unwatch(stream.fd());
  stream.paused = false;
  stream.Close();
}

namespace {

constexpr int kShellExitKilled = 128 + SIGKILL;

// The worker may have put anything at this path: only a regular file is read, without blocking.
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

// Whether the process ended because a child of it was killed: a program run by a shell, or a worker
// process of PyTorch's DataLoader.
bool FailedForAKilledChild(const ExitedFrame& end) {
  return end.exit_code == kShellExitKilled ||
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
  // Both are required: the counter may have risen for another group, and SIGKILL may come from
  // anyone.
  group.end.out_of_memory = (group.end.signal == SIGKILL || FailedForAKilledChild(group.end)) &&
                            !group.stop_state.killed &&
                            state.cgroups.OutOfMemoryKills(serial) > group.memory_kills_before;
  if (group.end.out_of_memory && state.cgroups.LimitReached() > group.limit_reached_before) {
    group.end.memory_limit = state.cgroups.MemoryLimit();
  }
}

// The exit is reported after the process's files are written, so that its readers find its output.
void AwaitFiles(State& state, Group& group, MonoTime now) {
  if (group.error_file.empty() && group.standard_output.log() == nullptr &&
      group.standard_error.log() == nullptr) {
    return ReportExit(state, group);
  }
  group.last_files = std::make_shared<LastFiles>();
  group.report_by = state.files.IsHung(now) ? now : now + kLastFilesLimit;
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
  StopState& stop_state = group.stop_state;
  stop_state.died_of_term = stop_state.term_sent && !stop_state.killed &&
                            info.si_code != CLD_EXITED && info.si_status == SIGTERM;
  if (!stop_state.died_of_term) {
    kill(-group.pid, SIGKILL);
  } else if (stop_state.process_only) {
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
