#include "agent/evidence/native_stacks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/process_scan.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/user_directory.h"

namespace cadre::agent {
namespace {

// The interval at which a wait checks for cancellation.
constexpr int64_t kCancelPollMs = 20;

std::vector<std::string> ToolFor(pid_t process) {
  const std::string pid = absl::StrCat(process);
  for (const char* folder : {"/usr/bin", "/usr/local/bin"}) {
    const std::string eu_stack = absl::StrCat(folder, "/eu-stack");
    if (access(eu_stack.c_str(), X_OK) == 0) return {eu_stack, "-p", pid};
    const std::string gdb = absl::StrCat(folder, "/gdb");
    if (access(gdb.c_str(), X_OK) == 0) {
      return {gdb,
              "--batch",
              "-nx",
              "-iex",
              "set auto-load off",
              "-iex",
              "set debuginfod enabled off",
              "-p",
              pid,
              "-ex",
              "thread apply all bt 32"};
    }
  }
  return {};
}

// posix_spawn, because the agent has gRPC threads and never forks.
int Start(const std::vector<std::string>& tool, int output, pid_t* pid) {
  std::vector<char*> argv;
  for (const std::string& word : tool) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const std::string home = UserHome();
  const std::string home_entry = absl::StrCat("HOME=", home.empty() ? "/" : home);
  const char* const environment[] = {"PATH=/usr/bin:/bin", "DEBUGINFOD_URLS=", "LC_ALL=C",
                                     home_entry.c_str(), nullptr};
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // Its own process group, because Ctrl-C is meant for the job.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  const int error = posix_spawn(pid, argv[0], &files, &attributes, argv.data(),
                                const_cast<char* const*>(environment));
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return error;
}

// Returns true if the tool closed its output.
bool ReadAll(int fd, MonoTime deadline, const std::atomic<bool>& cancelled, std::string* text) {
  char chunk[4096];
  while (!cancelled) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - MonoNow());
    if (left <= 0) return false;
    pollfd ready = {fd, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(std::min(left, kCancelPollMs))) <= 0) continue;
    const ssize_t n = read(fd, chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    // Output beyond the limit is read and dropped, so that the tool can end.
    text->append(chunk, std::min(static_cast<size_t>(n), kMaxStackBytes - text->size()));
  }
  return false;
}

bool IsStopped(pid_t process) {
  const auto found = supervisor::InspectProcess(process);
  return found.has_value() && found->state == 'T';
}

}  // namespace

std::string NativeStacks(pid_t process, MonoTime deadline, const std::atomic<bool>& cancelled) {
  const std::vector<std::string> tool = ToolFor(process);
  if (tool.empty()) return "no native stacks: neither eu-stack nor gdb is installed\n";
  return StacksBy(tool, process, deadline, cancelled);
}

std::string StacksBy(const std::vector<std::string>& tool, pid_t process, MonoTime deadline,
                     const std::atomic<bool>& cancelled) {
  const ScopedFd pidfd(supervisor::OpenPidfd(process));
  const bool was_stopped = IsStopped(process);
  std::string text = OutputOfTool(tool, deadline, cancelled);
  // ptrace(2): the tool attaches with SIGSTOP, which persists if it is killed before it detaches.
  if (!was_stopped) supervisor::SignalPidfd(pidfd.get(), SIGCONT);
  return text;
}

std::string OutputOfTool(const std::vector<std::string>& tool, MonoTime deadline,
                         const std::atomic<bool>& cancelled) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::StrCat("no native stacks: pipe: ", strerror(errno));
  ScopedFd read_end(ends[0]);
  ScopedFd write_end(ends[1]);
  pid_t pid = 0;
  const int error = Start(tool, write_end.get(), &pid);
  write_end.Reset();
  if (error != 0) return absl::StrCat("no native stacks: ", tool[0], ": ", strerror(error), "\n");
  std::string text;
  const bool whole = ReadAll(read_end.get(), deadline, cancelled, &text);
  // Its output is complete or no longer needed, so it and its children, which are in its group, are
  // killed.
  kill(-pid, SIGKILL);
  while (waitpid(-pid, nullptr, 0) > 0 || errno == EINTR) {
  }
  if (!whole) absl::StrAppend(&text, "(", tool[0], " was not done in time)\n");
  if (text.size() >= kMaxStackBytes) absl::StrAppend(&text, "\n(cut)\n");
  return text;
}

}  // namespace cadre::agent
