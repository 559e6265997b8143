#include "launcher/slurm/program_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"

extern char** environ;

namespace cadre::launcher {
namespace {

constexpr size_t kMaxOutputBytes = 1 << 20;
constexpr size_t kMaxErrorLine = 1024;

// Both of its streams, as pipes of which this process has the reading ends.
struct Pipes {
  int out[2] = {-1, -1};
  int err[2] = {-1, -1};
  ~Pipes() {
    for (const int fd : {out[0], out[1], err[0], err[1]}) {
      if (fd >= 0) close(fd);
    }
  }
  void CloseWritingEnds() {
    close(out[1]);
    close(err[1]);
    out[1] = err[1] = -1;
  }
};

absl::StatusOr<pid_t> Start(const std::vector<std::string>& argv, const Pipes& pipes) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, pipes.out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, pipes.err[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Ctrl-C is for this process, which has blocked it.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, pointers[0], &files, &attributes, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", argv[0]));
  return pid;
}

// False when the stream has ended.
bool ReadSome(int fd, std::string* to) {
  char bytes[16 << 10];
  const ssize_t got = read(fd, bytes, sizeof(bytes));
  if (got < 0) return errno == EINTR;
  const size_t room = kMaxOutputBytes - std::min(to->size(), kMaxOutputBytes);
  to->append(bytes, std::min<size_t>(got, room));
  return got > 0;
}

// Until both streams have ended; false when that did not come in time.
bool ReadAll(const Pipes& pipes, MonoTime deadline, ProgramOutput* output) {
  pollfd fds[2] = {{pipes.out[0], POLLIN, 0}, {pipes.err[0], POLLIN, 0}};
  std::string* const texts[2] = {&output->standard_output, &output->standard_error};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    const absl::Duration left = deadline - MonoNow();
    if (left <= absl::ZeroDuration()) return false;
    poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd >= 0 && fds[i].revents != 0 && !ReadSome(fds[i].fd, texts[i])) fds[i].fd = -1;
      fds[i].revents = 0;
    }
  }
  return true;
}

// Whether it has, by then.
bool EndsUntil(pid_t pid, MonoTime deadline) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd ended = {fd, POLLIN, 0};
  const absl::Duration left = std::max(deadline - MonoNow(), absl::ZeroDuration());
  const int ready = poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
  if (fd >= 0) close(fd);
  return ready == 1;
}

}  // namespace

absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& argv,
                                         absl::Duration timeout) {
  Pipes pipes;
  if (pipe2(pipes.out, O_CLOEXEC) != 0 || pipe2(pipes.err, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "pipe");
  }
  ASSIGN_OR_RETURN(const pid_t pid, Start(argv, pipes));
  pipes.CloseWritingEnds();
  ProgramOutput output;
  const MonoTime deadline = MonoNow() + timeout;
  const bool in_time = ReadAll(pipes, deadline, &output) && EndsUntil(pid, deadline);
  if (!in_time) kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time) {
    return absl::DeadlineExceededError(
        absl::StrCat(argv[0], " did not end within ", absl::FormatDuration(timeout)));
  }
  output.status = ExitStatusOfWait(status);
  return output;
}

std::string ErrorLine(const ProgramOutput& output) {
  const std::vector<std::string> lines =
      absl::StrSplit(output.standard_error, '\n', absl::SkipWhitespace());
  if (lines.empty()) return absl::StrCat("exit status ", output.status);
  return absl::StrJoin(lines, "; ").substr(0, kMaxErrorLine);
}

}  // namespace cadre::launcher
