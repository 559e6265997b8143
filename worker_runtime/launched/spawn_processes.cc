// Spawn(): the calling process, the processes that it starts, and what each of them does first.
#include "worker_runtime/launched/spawn_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/token.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "rpc/frames/codec.h"
#include "rpc/frames/frame_reader.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/store/served_worker.h"
#include "worker_runtime/store/store_server.h"

namespace cadre::launched {
namespace {

// The interval of an additional check, which should find nothing.
constexpr int kPollMillis = 10000;

// Whether it is an error that is often caused by the failure of another rank.
bool IsCausedByAnotherRank(StatusCode code) {
  return code == StatusCode::kAborted || code == StatusCode::kUnavailable ||
         code == StatusCode::kDeadlineExceeded || code == StatusCode::kCancelled;
}

// Orders causes: lower is more likely; 0 and 1 are not errors caused by another rank.
int OrderOf(const RankEnd& end) {
  if (!end.outcome.has_value()) return 0;
  return IsCausedByAnotherRank(static_cast<StatusCode>(end.outcome->code)) ? 2 : 1;
}

bool Failed(const RankEnd& end) { return !end.outcome.has_value() || !end.outcome->status().ok(); }

std::optional<Outcome> OutcomeIn(int socket) {
  frames::FrameReader reader(kSpawnFrameBytesMax);
  absl::string_view frame;
  while (true) {
    const absl::StatusOr<bool> found = reader.Next(&frame);
    if (!found.ok()) return std::nullopt;
    if (*found) break;
    // All that it wrote is readable, since it has ended.
    char bytes[4096];
    const ssize_t got = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) return std::nullopt;
    reader.Append(absl::string_view(bytes, static_cast<size_t>(got)));
  }
  absl::StatusOr<Outcome> outcome = frames::ParseMessage<Outcome>(frame);
  if (!outcome.ok()) return std::nullopt;
  return *std::move(outcome);
}

class Ranks {
 public:
  explicit Ranks(std::chrono::nanoseconds grace) : grace_(absl::FromChrono(grace)) {}

  Status Start(const Assignment& assignment);
  Status Wait();

 private:
  // Removes and returns the ranks that have ended since the last call.
  std::vector<RankEnd> TakeEnded();
  void TerminateOthers();

  const absl::Duration grace_;
  std::map<int, std::unique_ptr<OwnProcess>> running_;
  MonoTime kill_at_ = MonoTime::Never();
  bool ending_ = false;
};

Status Ranks::Start(const Assignment& assignment) {
  ASSIGN_OR_RETURN(std::unique_ptr<OwnProcess> process, OwnProcess::Start());
  std::string frame;
  frames::AppendMessage(assignment, &frame);
  const ssize_t sent =
      send(process->socket(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // A rank that has already ended is found below.
  if (sent >= 0 && sent != static_cast<ssize_t>(frame.size())) {
    return InternalError("a new socket has no room for an assignment");
  }
  running_[assignment.rank] = std::move(process);
  return OkStatus();
}

std::vector<RankEnd> Ranks::TakeEnded() {
  std::vector<RankEnd> ended;
  for (auto it = running_.begin(); it != running_.end();) {
    OwnProcess& process = *it->second;
    const std::optional<std::string> how = process.End();
    if (!how.has_value()) {
      ++it;
      continue;
    }
    ended.push_back({it->first, process.pid(), *how, OutcomeIn(process.socket())});
    it = running_.erase(it);
  }
  return ended;
}

void Ranks::TerminateOthers() {
  if (!ending_) {
    ending_ = true;
    kill_at_ = MonoNow() + grace_;
    for (auto& [rank, process] : running_) process->Signal(SIGTERM);
  } else if (MonoNow() >= kill_at_) {
    kill_at_ = MonoTime::Never();
    for (auto& [rank, process] : running_) process->Signal(SIGKILL);
  }
}

Status Ranks::Wait() {
  Status cause;
  while (!running_.empty()) {
    std::vector<pollfd> waits;
    for (const auto& [rank, process] : running_) waits.push_back({process->pidfd(), POLLIN, 0});
    poll(waits.data(), waits.size(), sockets::MillisUntil(kill_at_, kPollMillis));
    const Status status = CauseAmong(TakeEnded());
    if (cause.ok()) cause = status;
    if (!cause.ok()) TerminateOthers();
  }
  return cause;
}

}  // namespace

Status CauseAmong(const std::vector<RankEnd>& ends) {
  const RankEnd* cause = nullptr;
  for (const RankEnd& end : ends) {
    if (Failed(end) && (cause == nullptr || OrderOf(end) < OrderOf(*cause))) cause = &end;
  }
  if (cause == nullptr) return OkStatus();
  const std::string who = absl::StrCat("rank ", cause->rank, " (process ", cause->pid, ") ");
  if (!cause->outcome.has_value()) {
    return InternalError(absl::StrCat(who, cause->how, " before it had done its part of Spawn()"));
  }
  const Status status = cause->outcome->status();
  return Status(status.code(), absl::StrCat(who, "failed: ", status.message()));
}

Status SpawnAll(int ranks, const std::vector<Outcome>& earlier, std::chrono::nanoseconds grace) {
  ASSIGN_OR_RETURN(ScopedFd listener, sockets::Listen(sockets::kLoopback));
  Assignment assignment;
  assignment.ranks = ranks;
  assignment.key = RandomToken();
  assignment.earlier = earlier;
  ASSIGN_OR_RETURN(const std::unique_ptr<store::StoreServer> server,
                   store::StoreServer::Start(std::move(listener), ranks, assignment.key));
  assignment.endpoint = server->endpoint();
  // Destroyed on an early return, which kills the ranks that have been started.
  Ranks all(grace);
  for (assignment.rank = 0; assignment.rank < ranks; ++assignment.rank) {
    RETURN_IF_ERROR(all.Start(assignment));
  }
  return all.Wait();
}

namespace {

// Valid even if the program's file has been replaced.
constexpr char kThisProgram[] = "/proc/self/exe";

Status NoMore(const char* what) {
  return ResourceExhaustedError(
      absl::StrCat("Spawn() cannot start a process: ", what, ": ", ErrnoText(errno)));
}

Result<std::vector<std::string>> Arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> arguments;
  for (size_t at = 0; at < text.size();) {
    arguments.emplace_back(text.c_str() + at);
    at += arguments.back().size() + 1;
  }
  if (!arguments.empty()) return arguments;
  return UnavailableError("Spawn() cannot read this program's arguments in /proc/self/cmdline");
}

std::vector<std::string> EnvironmentWith(const std::string& more) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!absl::StartsWith(*entry, absl::StrCat(kSpawnedVariable, "="))) {
      environment.emplace_back(*entry);
    }
  }
  environment.push_back(more);
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the child, where only async-signal-safe functions may be called.
[[noreturn]] void ExecProgram(char** argv, char** environment, int socket, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before PR_SET_PDEATHSIG was set.
  if (getppid() != parent) _exit(kExitInternal);
  fcntl(socket, F_SETFD, 0);
  execve(kThisProgram, argv, environment);
  _exit(kExitNotFound);
}

}  // namespace

OwnProcess::OwnProcess(pid_t pid, ScopedFd pidfd, ScopedFd socket)
    : pid_(pid), pidfd_(std::move(pidfd)), socket_(std::move(socket)) {}

Result<std::unique_ptr<OwnProcess>> OwnProcess::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return NoMore("socketpair");
  ScopedFd own(ends[0]), others(ends[1]);
  ASSIGN_OR_RETURN(std::vector<std::string> arguments, Arguments());
  const pid_t parent = getpid();
  std::vector<std::string> environment =
      EnvironmentWith(absl::StrCat(kSpawnedVariable, "=", others.get(), " ", parent));
  const std::vector<char*> argv = Pointers(arguments), envp = Pointers(environment);
  const pid_t pid = fork();
  if (pid < 0) return NoMore("fork");
  if (pid == 0) {
    ExecProgram(const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), others.get(),
                parent);
  }
  ScopedFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const bool watched = pidfd.ok();
  const Status failed = watched ? OkStatus() : NoMore("pidfd_open");
  std::unique_ptr<OwnProcess> process(new OwnProcess(pid, std::move(pidfd), std::move(own)));
  RETURN_IF_ERROR(failed);
  return process;
}

OwnProcess::~OwnProcess() {
  Signal(SIGKILL);
  while (!End().has_value()) {
    pollfd wait = {pidfd_.get(), POLLIN, 0};
    poll(&wait, pidfd_.ok() ? 1 : 0, 10);
  }
}

void OwnProcess::Signal(int signal) {
  if (!end_.has_value()) kill(pid_, signal);
}

std::optional<std::string> OwnProcess::End() {
  if (end_.has_value()) return end_;
  int status = 0;
  const pid_t ended = waitpid(pid_, &status, WNOHANG);
  if (ended == 0 || (ended < 0 && errno == EINTR)) return std::nullopt;
  if (ended < 0) {
    // The program ignores SIGCHLD, or has waited for all its children.
    end_ = "ended, and its exit status is not known";
  } else if (WIFEXITED(status)) {
    end_ = absl::StrCat("exited with status ", WEXITSTATUS(status));
  } else {
    end_ = absl::StrCat("was ended by ", SignalText(WTERMSIG(status)));
  }
  return end_;
}

namespace {

constexpr absl::Duration kAssignmentPatience = absl::Seconds(10);
constexpr int kAssignmentPollMillis = 1000;

// Returns -1 if this process was not started by Spawn().
int SocketOf(const environment::GetVariable& get) {
  const std::pair<absl::string_view, absl::string_view> words =
      absl::StrSplit(environment::TextOf(get, kSpawnedVariable), ' ');
  int socket = -1;
  pid_t parent = 0;
  const bool is_ours = absl::SimpleAtoi(words.first, &socket) &&
                       absl::SimpleAtoi(words.second, &parent) && parent == getppid();
  return is_ours ? socket : -1;
}

Result<std::string> ReadFrame(int socket) {
  const MonoTime deadline = MonoNow() + kAssignmentPatience;
  frames::FrameReader reader(kSpawnFrameBytesMax);
  absl::string_view frame;
  while (MonoNow() < deadline) {
    ASSIGN_OR_RETURN(const bool found, reader.Next(&frame));
    if (found) return std::string(frame);
    pollfd wait = {socket, POLLIN, 0};
    poll(&wait, 1, sockets::MillisUntil(deadline, kAssignmentPollMillis));
    char bytes[4096];
    const ssize_t got = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got == 0) return UnavailableError("the process that called Spawn() is gone");
    if (got > 0) reader.Append(absl::string_view(bytes, static_cast<size_t>(got)));
  }
  return UnavailableError("the process that called Spawn() does not say which rank this is");
}

}  // namespace

bool IsSpawned(const environment::GetVariable& get) { return SocketOf(get) >= 0; }

SpawnChild::SpawnChild(ScopedFd socket, Assignment assignment)
    : socket_(std::move(socket)), assignment_(std::move(assignment)) {}

Result<SpawnChild> SpawnChild::Make(const environment::GetVariable& get) {
  ScopedFd socket(SocketOf(get));
  if (!socket.ok()) return FailedPreconditionError("Spawn() did not start this process");
  fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  ASSIGN_OR_RETURN(const std::string frame, ReadFrame(socket.get()));
  ASSIGN_OR_RETURN(Assignment assignment, frames::ParseMessage<Assignment>(frame));
  return SpawnChild(std::move(socket), std::move(assignment));
}

std::unique_ptr<Worker> SpawnChild::MakeWorker() const {
  WorkerPlace place;
  place.job = absl::StrCat("spawn-", getppid());
  place.generation = 1;
  place.rank = place.local_rank = assignment_.rank;
  place.world_size = place.local_world_size = assignment_.ranks;
  return std::make_unique<store::ServedWorker>(
      store::StoreAddress{assignment_.endpoint, assignment_.key}, "the process that called Spawn()",
      place);
}

void SpawnChild::Report(const Status& status) const {
  std::string frame;
  frames::AppendMessage(Outcome::Of(status), &frame);
  // The frame fits into the socket's buffer; a caller that is gone reads nothing.
  if (send(socket_.get(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}

}  // namespace cadre::launched
