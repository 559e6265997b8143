#include "agent/supervisor/start.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/supervisor/output.h"
#include "agent/supervisor/processes/spawn.h"
#include "agent/supervisor/warm/warm_start.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/disk_full.h"
#include "base/threads/file_thread.h"

namespace cadre::supervisor {
namespace {

// The ExitedFrame for a start that failed at this step.
ExitedFrame NotStarted(const std::string& step, int error) {
  ExitedFrame end;
  end.exit_code = ExitCodeOf(error);
  end.exec_errno = error;
  end.exec_step = step;
  return end;
}

// How long a start waits for its files. After that the process starts without them: its output is
// buffered, up to a bound, until the file system answers.
constexpr absl::Duration kFilesLimit = absl::Seconds(2);

// Returns 0 or an errno.
int PrepareErrorFile(const std::string& path) {
  if (path.empty()) return 0;
  const absl::Status made = MakeDirectoriesFor(path);
  if (!made.ok()) {
    const int error = errno;
    if (IsDiskFull(error)) return 0;
    if (error == EPERM) Warn(made.message());
    return error;
  }
  return unlink(path.c_str()) == 0 || errno == ENOENT ? 0 : errno;
}

// Runs on the file thread.
void Prepare(const std::vector<std::shared_ptr<LogFile::File>>& logs, const std::string& error_file,
             PendingStart::Files& files) {
  for (const auto& log : logs) {
    if (files.error != 0) break;
    files.error = LogFile::OpenNow(*log, &files.failed);
  }
  if (files.error == 0) {
    files.failed = "error file";
    files.error = PrepareErrorFile(error_file);
  }
  if (files.error != 0 && files.given_up) {
    Warn(absl::StrCat("the files beside ", error_file, " cannot be made: ", strerror(files.error),
                      "; the worker runs without them"));
  }
  files.done = true;
}

std::unique_ptr<LogFile> LogAt(FileThread& files, const std::string& path, const NamedFile& named) {
  if (path.empty() && named.path.empty()) return nullptr;
  return std::make_unique<LogFile>(files, path, named);
}

bool HasOneStream(const StartFrame& start) {
  return !start.stdout_file.path.empty() && start.stdout_file.path == start.stderr_file.path;
}

// Begins to make the start's log files, and to remove an earlier worker's error file.
std::unique_ptr<PendingStart> PrepareFiles(FileThread& files, const StartFrame& start,
                                           MonoTime now) {
  auto pending_start = std::make_unique<PendingStart>();
  pending_start->start = start;
  pending_start->files = std::make_shared<PendingStart::Files>();
  pending_start->channels.stdout_log = LogAt(files, start.stdout_path, start.stdout_file);
  pending_start->channels.stderr_log = LogAt(files, start.stderr_path, start.stderr_file);
  std::vector<std::shared_ptr<LogFile::File>> logs;
  for (const auto* log :
       {&pending_start->channels.stdout_log, &pending_start->channels.stderr_log}) {
    if (*log != nullptr) logs.push_back((*log)->file());
  }
  if (logs.empty() && start.error_file.empty()) {
    pending_start->files->done = true;
    return pending_start;
  }
  pending_start->until = files.IsHung(now) ? now : now + kFilesLimit;
  files.Post([logs = std::move(logs), error_file = start.error_file,
              made = pending_start->files] { Prepare(logs, error_file, *made); },
             0, true);
  return pending_start;
}

void Capture(const StartFrame& start, OutputChannels& channels, Group& group) {
  group.standard_output =
      CapturedStream({start.group, kStdoutStream, start.forward_stdout && !start.stands_by},
                     std::move(channels.standard_output.read_end), std::move(channels.stdout_log));
  group.standard_error =
      CapturedStream({start.group, kStderrStream, start.forward_stderr && !start.stands_by},
                     std::move(channels.standard_error.read_end), std::move(channels.stderr_log));
  group.progress = CapturedStream({start.group, kProgressStream, !start.stands_by},
                                  std::move(channels.progress.read_end), nullptr);
}

// Reports once what would otherwise be reported for every group.
void WarnOnce(State& state, const std::string& line) {
  if (state.warnings.insert(line).second) Warn(line);
}

Spawned SpawnInto(State& state, uint64_t serial, const StartFrame& start,
                  const OutputChannels& channels, int standby_fd) {
  const ScopedFd cgroup = state.cgroups.Add(serial);
  if (start.containment.asked) {
    for (const std::string& undone : state.cgroups.SetLimits(serial, start.containment)) {
      WarnOnce(state, undone);
    }
  }
  SpawnRequest request;
  request.start = &start;
  request.marker = state.MarkerOf(serial);
  request.stdin_fd = state.null_device.get();
  request.stdout_fd = channels.standard_output.write_end.get();
  request.stderr_fd = channels.standard_error.write_end.get();
  request.progress_fd = channels.progress.write_end.get();
  request.standby_fd = standby_fd;
  request.cgroup_fd = cgroup.get();
  request.descriptors = state.descriptors;
  Spawned spawned = Spawn(request);
  if (state.cgroups.usable() && !spawned.in_cgroup && spawned.pid > 0) {
    const std::string refused = absl::StrCat("workers cannot be put into ", state.cgroups.root());
    WarnOnce(state,
             absl::StrCat(refused, "; processes that they leave behind are searched for in /proc"));
    if (start.containment.asked) {
      WarnOnce(state, absl::StrCat("the limits of jobs cannot be set: ", refused));
    }
  }
  return spawned;
}

void WatchProcess(State& state, uint64_t serial, const Group& group) {
  if (group.exec_status.ok()) {
    state.Watch(group.exec_status.get(), Source::kExec, serial, EPOLLIN);
  }
  state.Watch(group.standard_output.fd(), Source::kStdout, serial, EPOLLIN);
  state.Watch(group.standard_error.fd(), Source::kStderr, serial, EPOLLIN);
  state.Watch(group.progress.fd(), Source::kProgress, serial, EPOLLIN);
  state.Watch(group.pidfd.get(), Source::kExit, serial, EPOLLIN);
  state.by_pid[group.pid] = serial;
}

// The supervisor's end and the process's. On failure not ok(), and errno is set.
struct StandbySocket {
  ScopedFd ours;
  ScopedFd theirs;
};

StandbySocket MakeStandbySocket() {
  StandbySocket made;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return made;
  made.ours.Reset(ends[0]);
  made.theirs.Reset(ends[1]);
  return made;
}

// Sends the assignment to a standby process that waits for one: NAME=value entries, each terminated
// by a NUL as in /proc/PID/environ, and one more NUL. Returns nullptr if there is none.
Group* AssignStandby(State& state, const std::vector<std::string>& assignment) {
  std::string text;
  for (const std::string& entry : assignment) text.append(entry).push_back('\0');
  text.push_back('\0');
  for (auto& [serial, group] : state.groups) {
    if (!group.standby.ok() || group.exited || group.stop_state.requested) continue;
    char waits = 0;
    if (recv(group.standby.get(), &waits, sizeof(waits), MSG_DONTWAIT) != 1) continue;
    // A process that does not accept all of it is gone. It is not tried again, as it sends no
    // further byte.
    const ssize_t n =
        send(group.standby.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n == static_cast<ssize_t>(text.size())) return &group;
  }
  return nullptr;
}

// Continues the stream's log at another path.
void MoveStream(State& state, CapturedStream& stream, const CapturedStream::Options& options,
                const std::string& path, const NamedFile& named) {
  if (stream.log() != nullptr) {
    stream.log()->MoveTo(path, named);
  } else if (auto log = LogAt(state.files, path, named); log != nullptr) {
    stream.SetLog(std::move(log));
    stream.log()->Open();
  }
  stream.AttributeTo(options);
}

// The standby process becomes the group.
void AssignGroup(State& state, const StartFrame& start, Group& group) {
  const uint64_t was = std::exchange(group.id, start.group);
  const auto serial = state.by_id.find(was);
  CADRE_CHECK(serial != state.by_id.end(), "standby group ", was, " is not in the table");
  state.by_id[start.group] = serial->second;
  state.by_id.erase(serial);
  group.standby.Reset();
  MoveStream(state, group.standard_output, {start.group, kStdoutStream, start.forward_stdout},
             start.stdout_path, start.stdout_file);
  MoveStream(state, group.standard_error, {start.group, kStderrStream, start.forward_stderr},
             start.stderr_path, start.stderr_file);
  MoveStream(state, group.progress, {start.group, kProgressStream, true}, "", {});
  state.outbox.Send(StartedFrame{group.id, group.pid, was, false, ""});
}

// Called when the files are ready, or the start goes on without them.
void ContinueStart(State& state, uint64_t serial, Group& group) {
  CADRE_CHECK(group.pending_start != nullptr && group.pid == 0, "group ", group.id,
              " is not waiting to be started; pid ", group.pid);
  const std::unique_ptr<PendingStart> pending_start = std::move(group.pending_start);
  const StartFrame& start = pending_start->start;
  if (pending_start->files->done && pending_start->files->error != 0) {
    group.end = NotStarted(pending_start->files->failed, pending_start->files->error);
    return ReportExit(state, group);
  }
  if (!MakePipes(pending_start->channels, HasOneStream(start))) {
    group.end = NotStarted("pipe", errno);
    return ReportExit(state, group);
  }
  if (!start.warm.directory.empty() && !start.stands_by) {
    if (!start.warm.IsPython()) {
      return StartWithHook(state, serial, start, std::move(pending_start->channels), group);
    }
    return StartPythonGroup(state, serial, start, std::move(pending_start->channels), group,
                            MonoNow());
  }
  if (!StartProcess(state, serial, start, pending_start->channels, group)) ReportExit(state, group);
}

void Advance(State& state, uint64_t serial, Group& group, MonoTime now) {
  if (group.stop_state.requested) {
    group.pending_start.reset();
    group.end.signal = SIGKILL;
    return ReportExit(state, group);
  }
  if (!group.pending_start->files->done) {
    if (now < group.pending_start->until) return;
    group.pending_start->files->given_up = true;
    Warn(absl::StrCat(
        "the file system of ", group.pending_start->start.error_file,
        " does not answer; the worker is started, and its output is saved once the file "
        "system answers"));
  }
  ContinueStart(state, serial, group);
}

}  // namespace

void AttachProcess(State& state, uint64_t serial, const StartFrame& start, OutputChannels& channels,
                   Spawned process, Group& group) {
  CADRE_CHECK(process.pid > 0 && group.pid == 0, "group ", group.id, " with pid ", group.pid,
              " gets pid ", process.pid);
  group.pid = process.pid;
  group.pidfd = std::move(process.pidfd);
  group.exec_status = std::move(process.status);
  group.in_cgroup = process.in_cgroup;
  group.error_file = start.error_file;
  group.memory_kills_before = state.cgroups.OutOfMemoryKills(serial);
  group.limit_reached_before = state.cgroups.LimitReached();
  Capture(start, channels, group);
  WatchProcess(state, serial, group);
}

bool StartProcess(State& state, uint64_t serial, const StartFrame& start, OutputChannels& channels,
                  Group& group) {
  StandbySocket standby;
  if (start.stands_by) {
    standby = MakeStandbySocket();
    if (!standby.ours.ok()) {
      group.end = NotStarted("socket", errno);
      return false;
    }
  }
  Spawned spawned = SpawnInto(state, serial, start, channels, standby.theirs.get());
  if (spawned.pid <= 0) {
    group.end = NotStarted(spawned.failed_step, spawned.error);
    return false;
  }
  AttachProcess(state, serial, start, channels, std::move(spawned), group);
  group.standby = std::move(standby.ours);
  return true;
}

void StartGroup(State& state, const StartFrame& start) {
  if (Group* there = state.Find(start.group); there != nullptr) {
    Warn(absl::StrCat("group ", start.group,
                      " exists already; the agent's order to start it is ignored"));
    return;
  }
  if (!start.stands_by) state.adoption.ended.clear();
  if (!start.assignment.empty()) {
    Group* standby = AssignStandby(state, start.assignment);
    if (standby != nullptr) return AssignGroup(state, start, *standby);
  }
  const uint64_t serial = state.next_serial++;
  Group& group = state.groups[serial];
  group.id = start.group;
  state.by_id[start.group] = serial;
  group.pending_start = PrepareFiles(state.files, start, MonoNow());
  if (group.pending_start->files->done) ContinueStart(state, serial, group);
}

void AdvanceStarts(State& state, MonoTime now) {
  for (auto& [serial, group] : state.groups) {
    if (group.pending_start != nullptr) Advance(state, serial, group, now);
  }
}

MonoTime NextStartDeadline(const State& state) {
  MonoTime next = MonoTime::Never();
  for (const auto& [serial, group] : state.groups) {
    if (group.pending_start == nullptr) continue;
    next = std::min(next, group.stop_state.requested ? MonoTime() : group.pending_start->until);
  }
  return next;
}

}  // namespace cadre::supervisor
