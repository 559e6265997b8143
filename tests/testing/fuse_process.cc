#include "tests/testing/fuse_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"

extern char** environ;

namespace cadre {
namespace {

constexpr int kPatienceMs = 20000;
constexpr int kReadyFd = 3;

// 0: it could not be started.
pid_t Spawn(std::vector<std::string> words, int ready) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ready, kReadyFd);
  posix_spawn_file_actions_addclosefrom_np(&files, kReadyFd + 1);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, words[0].c_str(), &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  return error == 0 ? pid : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FuseProcess>> FuseProcess::Mount(const char* variable,
                                                                std::vector<std::string> arguments,
                                                                const std::string& place) {
  const char* program = getenv(variable);
  if (program == nullptr) return absl::InternalError(absl::StrCat(variable, " names no program"));
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const ScopedFd ours(ready[0]);
  ScopedFd theirs(ready[1]);
  arguments.insert(arguments.begin(), program);
  arguments.push_back(place);
  const pid_t pid = Spawn(std::move(arguments), theirs.get());
  theirs.Reset();
  std::unique_ptr<FuseProcess> made(new FuseProcess(pid, place));
  pollfd answers = {ours.get(), POLLIN, 0};
  char byte = 0;
  if (pid == 0 || poll(&answers, 1, kPatienceMs) != 1 || read(ours.get(), &byte, 1) != 1) {
    return absl::FailedPreconditionError("no file system of our own can be mounted (/dev/fuse)");
  }
  return made;
}

FuseProcess::~FuseProcess() {
  if (pid_ != 0) {
    // Its end lets all go that wait for it.
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  umount2(place_.c_str(), MNT_DETACH);
}

}  // namespace cadre
