#include "agent/supervisor/reap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "agent/supervisor/child.h"

namespace cadre {
namespace {

// The worker may have made anything of this path: only a regular file is read, and without waiting.
std::string ReadErrorFile(const std::string& path) {
  std::string text;
  if (path.empty()) return text;
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info;
  if (!fd.ok() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return text;
  char chunk[4096];
  while (text.size() < kMaxErrorFileBytes) {
    const ssize_t n = read(fd.get(), chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(chunk, static_cast<size_t>(n));
  }
  return text;
}

void FillCause(const State& state, const Worker& worker, const siginfo_t& info,
               ExitedFrame& frame) {
  frame.exec_step = worker.exec_step;
  frame.exec_errno = worker.exec_errno;
  if (info.si_code == CLD_EXITED) {
    frame.exit_code = info.si_status;
    return;
  }
  frame.signal = info.si_status;
  frame.core_dumped = info.si_code == CLD_DUMPED;
  // The counter alone may have risen for another worker, and SIGKILL alone may be anybody's.
  frame.out_of_memory = frame.signal == SIGKILL && !worker.killed &&
                        state.cgroups.OutOfMemoryKills(worker.generation, worker.local_rank) >
                            worker.memory_kills_before;
}

void PassOnOutput(State& state, Worker& worker) {
  for (CapturedStream* stream :
       {&worker.standard_output, &worker.standard_error, &worker.progress}) {
    stream->ReadAvailable(state.outbox);
    stream->FlushRest(state.outbox);
  }
}

}  // namespace

void HandleExecStatus(State& state, uint64_t slot) {
  const auto found = state.workers.find(slot);
  if (found == state.workers.end() || !found->second.exec_status.ok()) return;
  Worker& worker = found->second;
  ChildFailure failure;
  const ssize_t n = read(worker.exec_status.get(), &failure, sizeof(failure));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  state.Unwatch(worker.exec_status.get());
  worker.exec_status.Reset();
  if (n == static_cast<ssize_t>(sizeof(failure))) {
    worker.exec_step = NameOf(failure.step);
    worker.exec_errno = failure.error;
    return;
  }
  state.outbox.Send(StartedFrame{worker.generation, worker.local_rank, worker.pid});
}

void HandleExit(State& state, uint64_t slot) {
  const auto found = state.workers.find(slot);
  if (found == state.workers.end() || found->second.exited) return;
  Worker& worker = found->second;
  siginfo_t info = {};
  const auto pid = static_cast<id_t>(worker.pid);
  if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
  HandleExecStatus(state, slot);
  kill(-worker.pid, SIGKILL);
  PassOnOutput(state, worker);

  ExitedFrame frame;
  frame.generation = worker.generation;
  frame.local_rank = worker.local_rank;
  frame.pid = worker.pid;
  FillCause(state, worker, info, frame);
  frame.last_lines = worker.standard_error.Tail();
  if (frame.last_lines.empty()) frame.last_lines = worker.standard_output.Tail();
  frame.error_json = ReadErrorFile(worker.error_file);
  ReportExit(state, frame);

  worker.exited = true;
  state.by_pid.erase(worker.pid);
  if (worker.pidfd.ok()) state.Unwatch(worker.pidfd.get());
  worker.pidfd.Reset();
  waitid(P_PID, pid, &info, WEXITED | WNOHANG);
}

void ReapAll(State& state) {
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 || info.si_pid == 0) {
      return;
    }
    const auto worker = state.by_pid.find(info.si_pid);
    if (worker != state.by_pid.end()) {
      HandleExit(state, worker->second);
    } else {
      waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG | __WALL);
    }
  }
}

}  // namespace cadre
