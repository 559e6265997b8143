#include "tests/testing/standing_file_system.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "base/scoped_fd.h"

extern char** environ;

namespace cadre {
namespace {

constexpr int kPatienceMs = 20000;
constexpr int kReadyFd = 3;

// 0: it could not be started.
pid_t Spawn(const std::string& program, const std::string& directory, const std::string& place,
            int ready) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ready, kReadyFd);
  posix_spawn_file_actions_addclosefrom_np(&files, kReadyFd + 1);
  std::string words[] = {program, directory, place};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &files, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&files);
  return error == 0 ? pid : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StandingFileSystem>> StandingFileSystem::Mount() {
  const char* program = getenv("CADRE_STANDING_FS");
  if (program == nullptr) return absl::InternalError("CADRE_STANDING_FS names no program");
  std::unique_ptr<StandingFileSystem> made(new StandingFileSystem);
  made->root_ = "/tmp/cadre_standing_XXXXXX";
  if (mkdtemp(made->root_.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  made->directory_ = made->root_ + "/behind";
  made->place_ = made->root_ + "/place";
  for (const std::string& folder : {made->directory_, made->place_}) {
    if (mkdir(folder.c_str(), 0755) != 0) return absl::ErrnoToStatus(errno, folder);
  }
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const ScopedFd ours(ready[0]);
  ScopedFd theirs(ready[1]);
  made->pid_ = Spawn(program, made->directory_, made->place_, theirs.get());
  theirs.Reset();
  pollfd answers = {ours.get(), POLLIN, 0};
  char byte = 0;
  if (made->pid_ == 0 || poll(&answers, 1, kPatienceMs) != 1 || read(ours.get(), &byte, 1) != 1) {
    return absl::FailedPreconditionError("no file system of our own can be mounted (/dev/fuse)");
  }
  return made;
}

StandingFileSystem::~StandingFileSystem() {
  if (pid_ != 0) {
    // Its end lets all go that wait for it.
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (!place_.empty()) umount2(place_.c_str(), MNT_DETACH);
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

void StandingFileSystem::StandStill() {
  kill(pid_, SIGSTOP);
  siginfo_t info = {};
  waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED);
}

void StandingFileSystem::GoOn() { kill(pid_, SIGCONT); }

}  // namespace cadre
