#include "agent/supervisor/process_start.h"

#include <errno.h>
#include <sys/epoll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/output/complaints.h"
#include "agent/supervisor/processes/child.h"
#include "agent/supervisor/standby.h"

namespace cadre::supervisor {
namespace {

void Capture(const StartFrame& start, Plumbing& plumbing, Group& group) {
  group.standard_output =
      CapturedStream({start.group, kStdoutStream, start.forward_stdout && !start.stands_by},
                     std::move(plumbing.standard_output.read_end), std::move(plumbing.stdout_log));
  group.standard_error =
      CapturedStream({start.group, kStderrStream, start.forward_stderr && !start.stands_by},
                     std::move(plumbing.standard_error.read_end), std::move(plumbing.stderr_log));
  group.progress = CapturedStream({start.group, kProgressStream, !start.stands_by},
                                  std::move(plumbing.progress.read_end), nullptr);
}

// What would be said of every group.
void ComplainOnce(State& state, const std::string& line) {
  if (state.complaints.insert(line).second) Complain(line);
}

Spawned SpawnInto(State& state, uint64_t serial, const StartFrame& start, const Plumbing& plumbing,
                  int standby_fd) {
  const ScopedFd cgroup = state.cgroups.Add(serial);
  if (start.containment.asked) {
    for (const std::string& undone : state.cgroups.Contain(serial, start.containment)) {
      ComplainOnce(state, undone);
    }
  }
  SpawnRequest request;
  request.start = &start;
  request.marker = state.MarkerOf(serial);
  request.stdin_fd = state.null_device.get();
  request.stdout_fd = plumbing.standard_output.write_end.get();
  request.stderr_fd = plumbing.standard_error.write_end.get();
  request.progress_fd = plumbing.progress.write_end.get();
  request.standby_fd = standby_fd;
  request.cgroup_fd = cgroup.get();
  request.descriptors = state.descriptors;
  Spawned spawned = Spawn(request);
  if (state.cgroups.usable() && !spawned.in_cgroup && spawned.pid > 0) {
    const std::string refused = absl::StrCat("workers cannot be put into ", state.cgroups.root());
    ComplainOnce(state, absl::StrCat(refused, "; what they leave behind is looked for in /proc"));
    if (start.containment.asked) {
      ComplainOnce(state, absl::StrCat("no job is contained: ", refused));
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

}  // namespace

ExitedFrame NotStarted(const std::string& step, int error) {
  ExitedFrame end;
  end.exit_code = ExitCodeOf(error);
  end.exec_errno = error;
  end.exec_step = step;
  return end;
}

void TakeProcess(State& state, uint64_t serial, const StartFrame& start, Plumbing& plumbing,
                 Spawned process, Group& group) {
  group.pid = process.pid;
  group.pidfd = std::move(process.pidfd);
  group.exec_status = std::move(process.status);
  group.in_cgroup = process.in_cgroup;
  group.error_file = start.error_file;
  group.memory_kills_before = state.cgroups.OutOfMemoryKills(serial);
  group.limit_reached_before = state.cgroups.LimitReached();
  Capture(start, plumbing, group);
  WatchProcess(state, serial, group);
}

bool StartProcess(State& state, uint64_t serial, const StartFrame& start, Plumbing& plumbing,
                  Group& group) {
  StandbySocket standby;
  if (start.stands_by) {
    standby = MakeStandbySocket();
    if (!standby.ours.ok()) {
      group.end = NotStarted("socket", errno);
      return false;
    }
  }
  Spawned spawned = SpawnInto(state, serial, start, plumbing, standby.theirs.get());
  if (spawned.pid <= 0) {
    group.end = NotStarted(spawned.failed_step, spawned.error);
    return false;
  }
  TakeProcess(state, serial, start, plumbing, std::move(spawned), group);
  group.standby = std::move(standby.ours);
  return true;
}

}  // namespace cadre::supervisor
