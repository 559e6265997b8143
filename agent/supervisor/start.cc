#include "agent/supervisor/start.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/child.h"
#include "agent/supervisor/spawn.h"
#include "agent/supervisor/standby.h"
#include "base/disk_full.h"

namespace cadre::supervisor {
namespace {

// An empty path is no file, and a full disk has none. False: errno says why.
bool OpenLog(const std::string& path, ScopedFd& file) {
  if (path.empty()) return true;
  if (MakeDirectoriesFor(path)) {
    file.Reset(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  }
  if (file.ok()) return true;
  if (!IsDiskFull(errno)) return false;
  Complain(absl::StrCat("cannot make ", path, ": ", strerror(errno),
                        "; the worker runs, and its output is not kept"));
  return true;
}

bool PrepareErrorFile(const std::string& path) {
  if (path.empty()) return true;
  if (!MakeDirectoriesFor(path)) return IsDiskFull(errno);
  return unlink(path.c_str()) == 0 || errno == ENOENT;
}

struct Plumbing {
  ScopedFd stdout_file;
  ScopedFd stderr_file;
  WorkerPipe standard_output;
  WorkerPipe standard_error;
  WorkerPipe progress;
  StandbySocket standby;
};

// The name of the step that failed, errno set; nullptr when all is there.
const char* Prepare(const StartFrame& start, Plumbing& plumbing) {
  if (!OpenLog(start.stdout_path, plumbing.stdout_file)) return "open log";
  if (!OpenLog(start.stderr_path, plumbing.stderr_file)) return "open log";
  if (!PrepareErrorFile(start.error_file)) return "error file";
  for (WorkerPipe* pipe :
       {&plumbing.standard_output, &plumbing.standard_error, &plumbing.progress}) {
    *pipe = MakeWorkerPipe();
    if (!pipe->read_end.ok()) return "pipe";
  }
  if (start.stands_by) plumbing.standby = MakeStandbySocket();
  return start.stands_by && !plumbing.standby.ours.ok() ? "socket" : nullptr;
}

void Capture(const StartFrame& start, Plumbing& plumbing, Group& group) {
  group.standard_output = CapturedStream(
      {start.group, kStdoutStream, start.forward_stdout && !start.stands_by, start.stdout_path},
      std::move(plumbing.standard_output.read_end), std::move(plumbing.stdout_file));
  group.standard_error = CapturedStream(
      {start.group, kStderrStream, start.forward_stderr && !start.stands_by, start.stderr_path},
      std::move(plumbing.standard_error.read_end), std::move(plumbing.stderr_file));
  group.progress = CapturedStream({start.group, kProgressStream, !start.stands_by, ""},
                                  std::move(plumbing.progress.read_end), ScopedFd());
}

Spawned SpawnInto(State& state, uint64_t serial, const StartFrame& start,
                  const Plumbing& plumbing) {
  const ScopedFd cgroup = state.cgroups.Add(serial);
  SpawnRequest request;
  request.start = &start;
  request.marker = state.MarkerOf(serial);
  request.stdin_fd = state.null_device.get();
  request.stdout_fd = plumbing.standard_output.write_end.get();
  request.stderr_fd = plumbing.standard_error.write_end.get();
  request.progress_fd = plumbing.progress.write_end.get();
  request.standby_fd = plumbing.standby.theirs.get();
  request.cgroup_fd = cgroup.get();
  request.descriptors = state.descriptors;
  Spawned spawned = Spawn(request);
  if (state.cgroups.usable() && !spawned.in_cgroup && spawned.pid > 0 && !state.cgroup_refused) {
    state.cgroup_refused = true;
    Complain(absl::StrCat("workers cannot be put into ", state.cgroups.root(),
                          "; what they leave behind is looked for in /proc"));
  }
  return spawned;
}

ExitedFrame NotStarted(const std::string& step, int error) {
  ExitedFrame end;
  end.exit_code = ExitCodeOf(error);
  end.exec_errno = error;
  end.exec_step = step;
  return end;
}

// False: `group.end` says why there is no process.
bool StartProcess(State& state, uint64_t serial, const StartFrame& start, Group& group) {
  Plumbing plumbing;
  if (const char* failed = Prepare(start, plumbing); failed != nullptr) {
    group.end = NotStarted(failed, errno);
    return false;
  }
  Spawned spawned = SpawnInto(state, serial, start, plumbing);
  if (spawned.pid <= 0) {
    group.end = NotStarted(spawned.failed_step, spawned.error);
    return false;
  }
  group.pid = spawned.pid;
  group.pidfd = std::move(spawned.pidfd);
  group.exec_status = std::move(spawned.status);
  group.in_cgroup = spawned.in_cgroup;
  group.error_file = start.error_file;
  group.memory_kills_before = state.cgroups.OutOfMemoryKills(serial);
  Capture(start, plumbing, group);
  group.standby = std::move(plumbing.standby.ours);
  return true;
}

void WatchProcess(State& state, uint64_t serial, const Group& group) {
  state.Watch(group.exec_status.get(), Source::kExec, serial, EPOLLIN);
  state.Watch(group.standard_output.fd(), Source::kStdout, serial, EPOLLIN);
  state.Watch(group.standard_error.fd(), Source::kStderr, serial, EPOLLIN);
  state.Watch(group.progress.fd(), Source::kProgress, serial, EPOLLIN);
  state.Watch(group.pidfd.get(), Source::kExit, serial, EPOLLIN);
  state.by_pid[group.pid] = serial;
}

// The stream goes on at another path, with what was written so far where the file can be moved.
void MoveStream(CapturedStream& stream, const CapturedStream::Options& options) {
  ScopedFd file;
  const std::string from = stream.path();
  if (!options.path.empty() && options.path != from) {
    MakeDirectoriesFor(options.path);
    const bool moved = !from.empty() && access(options.path.c_str(), F_OK) != 0 &&
                       rename(from.c_str(), options.path.c_str()) == 0;
    // Where neither can be it goes on where it was.
    if (!moved) OpenLog(options.path, file);
  }
  stream.Become(options, std::move(file));
}

// A process that stood by is the group from now on.
void TakeOver(State& state, const StartFrame& start, Group& group) {
  const uint64_t was = std::exchange(group.id, start.group);
  const auto serial = state.by_id.find(was);
  state.by_id[start.group] = serial->second;
  state.by_id.erase(serial);
  group.standby.Reset();
  MoveStream(group.standard_output,
             {start.group, kStdoutStream, start.forward_stdout, start.stdout_path});
  MoveStream(group.standard_error,
             {start.group, kStderrStream, start.forward_stderr, start.stderr_path});
  MoveStream(group.progress, {start.group, kProgressStream, true, ""});
  state.outbox.Send(StartedFrame{group.id, group.pid, was});
}

}  // namespace

void StartGroup(State& state, const StartFrame& start) {
  if (Group* there = state.Find(start.group); there != nullptr) {
    Complain(absl::StrCat("group ", start.group, " is there already; the order to start it is ",
                          "ignored"));
    return;
  }
  if (!start.stands_by) state.keeping.ended.clear();
  if (!start.assignment.empty()) {
    Group* standby = AssignStandby(state, start.assignment);
    if (standby != nullptr) return TakeOver(state, start, *standby);
  }
  const uint64_t serial = state.next_serial++;
  Group& group = state.groups[serial];
  group.id = start.group;
  state.by_id[start.group] = serial;
  if (StartProcess(state, serial, start, group)) return WatchProcess(state, serial, group);
  ReportExit(state, group);
}

}  // namespace cadre::supervisor
