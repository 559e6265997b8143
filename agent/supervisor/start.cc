#include "agent/supervisor/start.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/child.h"
#include "agent/supervisor/spawn.h"
#include "base/disk_full.h"

namespace cadre {
namespace {

void SendNotStarted(State& state, const StartFrame& start, const std::string& step, int error) {
  ExitedFrame frame;
  frame.generation = start.generation;
  frame.local_rank = start.local_rank;
  frame.exit_code = ExitCodeOf(error);
  frame.exec_errno = error;
  frame.exec_step = step;
  ReportExit(state, frame);
}

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
  return nullptr;
}

CapturedStream Capture(const StartFrame& start, uint8_t stream, WorkerPipe& pipe, ScopedFd file) {
  CapturedStream::Options options;
  options.generation = start.generation;
  options.local_rank = start.local_rank;
  options.stream = stream;
  if (stream == kStdoutStream) {
    options.forward = start.forward_stdout;
    options.path = start.stdout_path;
  } else if (stream == kStderrStream) {
    options.forward = start.forward_stderr;
    options.path = start.stderr_path;
  }
  return CapturedStream(std::move(options), std::move(pipe.read_end), std::move(file));
}

Spawned SpawnInto(State& state, const StartFrame& start, const Plumbing& plumbing) {
  const ScopedFd cgroup = state.cgroups.AddWorker(start.generation, start.local_rank);
  SpawnRequest request;
  request.start = &start;
  request.marker = absl::StrCat(state.id, ".", start.generation);
  request.stdin_fd = state.null_device.get();
  request.stdout_fd = plumbing.standard_output.write_end.get();
  request.stderr_fd = plumbing.standard_error.write_end.get();
  request.progress_fd = plumbing.progress.write_end.get();
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

// Whether the frame can be carried out at all; if not, it has been answered.
bool Accept(State& state, const StartFrame& start) {
  Generation& generation = state.generations[start.generation];
  if (generation.slot == 0) generation.slot = state.next_slot++;
  if (generation.stopping) {
    SendNotStarted(state, start, "generation is being stopped", ECANCELED);
    return false;
  }
  for (const uint64_t slot : generation.workers) {
    if (state.workers[slot].local_rank != start.local_rank) continue;
    Complain(absl::StrCat("generation ", start.generation, " has a worker ", start.local_rank,
                          " already; the order to start another is ignored"));
    return false;
  }
  return true;
}

}  // namespace

void StartWorker(State& state, const StartFrame& start) {
  if (!Accept(state, start)) return;
  Plumbing plumbing;
  const char* failed = Prepare(start, plumbing);
  if (failed != nullptr) return SendNotStarted(state, start, failed, errno);

  Worker worker;
  worker.generation = start.generation;
  worker.local_rank = start.local_rank;
  worker.error_file = start.error_file;
  Spawned spawned = SpawnInto(state, start, plumbing);
  if (spawned.pid <= 0) return SendNotStarted(state, start, spawned.failed_step, spawned.error);
  worker.pid = spawned.pid;
  worker.pidfd = std::move(spawned.pidfd);
  worker.exec_status = std::move(spawned.status);
  worker.in_cgroup = spawned.in_cgroup;
  worker.memory_kills_before = state.cgroups.OutOfMemoryKills(start.generation, start.local_rank);
  worker.standard_output =
      Capture(start, kStdoutStream, plumbing.standard_output, std::move(plumbing.stdout_file));
  worker.standard_error =
      Capture(start, kStderrStream, plumbing.standard_error, std::move(plumbing.stderr_file));
  worker.progress = Capture(start, kProgressStream, plumbing.progress, ScopedFd());

  const uint64_t slot = state.next_slot++;
  state.Watch(worker.exec_status.get(), Source::kExec, slot, EPOLLIN);
  state.Watch(worker.standard_output.fd(), Source::kStdout, slot, EPOLLIN);
  state.Watch(worker.standard_error.fd(), Source::kStderr, slot, EPOLLIN);
  state.Watch(worker.progress.fd(), Source::kProgress, slot, EPOLLIN);
  state.Watch(worker.pidfd.get(), Source::kExit, slot, EPOLLIN);
  state.by_pid[worker.pid] = slot;
  state.generations[start.generation].workers.push_back(slot);
  state.workers.emplace(slot, std::move(worker));
}

}  // namespace cadre
