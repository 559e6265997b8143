#include "worker_runtime/launched/own_process.h"

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
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cadre/status.h"
#include "worker_runtime/launched/spawn_messages.h"

namespace cadre::launched {
namespace {

// Also when the file was replaced since.
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

// In the child, where only calls that a signal handler may make are allowed.
[[noreturn]] void Become(char** argv, char** environment, int socket, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have ended before that.
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
    Become(const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), others.get(), parent);
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
    end_ = "ended, and nobody knows how";
  } else if (WIFEXITED(status)) {
    end_ = absl::StrCat("exited with status ", WEXITSTATUS(status));
  } else {
    end_ = absl::StrCat("was ended by ", SignalText(WTERMSIG(status)));
  }
  return end_;
}

}  // namespace cadre::launched
