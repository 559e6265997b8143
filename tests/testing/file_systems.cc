#include "tests/testing/file_systems.h"

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
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"

extern char** environ;

namespace cadre {
namespace {

constexpr int kTimeoutMs = 20000;
constexpr int kReadyFd = 3;

// Returns 0 if the program could not be started.
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
  if (pid == 0 || poll(&answers, 1, kTimeoutMs) != 1 || read(ours.get(), &byte, 1) != 1) {
    return absl::FailedPreconditionError("no file system of our own can be mounted (/dev/fuse)");
  }
  return made;
}

FuseProcess::~FuseProcess() {
  if (pid_ != 0) {
    // When the program ends, operations that wait for it fail.
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  umount2(place_.c_str(), MNT_DETACH);
}

absl::StatusOr<std::unique_ptr<HangingFileSystem>> HangingFileSystem::Mount() {
  std::unique_ptr<HangingFileSystem> made(new HangingFileSystem);
  made->root_ = "/tmp/cadre_standing_XXXXXX";
  if (mkdtemp(made->root_.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  made->directory_ = made->root_ + "/behind";
  made->place_ = made->root_ + "/place";
  for (const std::string& folder : {made->directory_, made->place_}) {
    if (mkdir(folder.c_str(), 0755) != 0) return absl::ErrnoToStatus(errno, folder);
  }
  auto process = FuseProcess::Mount("CADRE_STANDING_FS", {made->directory_}, made->place_);
  if (!process.ok()) return process.status();
  made->process_ = *std::move(process);
  return made;
}

HangingFileSystem::~HangingFileSystem() {
  process_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

void HangingFileSystem::Hang() {
  kill(process_->pid(), SIGSTOP);
  siginfo_t info = {};
  waitid(P_PID, static_cast<id_t>(process_->pid()), &info, WSTOPPED);
}

void HangingFileSystem::Resume() { kill(process_->pid(), SIGCONT); }

absl::StatusOr<std::unique_ptr<ForgetfulFileSystem>> ForgetfulFileSystem::Mount(SyncKeeps keeps) {
  std::unique_ptr<ForgetfulFileSystem> made(new ForgetfulFileSystem);
  std::string place = "/tmp/cadre_forgetful_XXXXXX";
  if (mkdtemp(place.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  made->place_ = place;
  auto process = FuseProcess::Mount("CADRE_FORGETFUL_FS",
                                    {keeps == SyncKeeps::kAll ? "all" : "nothing"}, made->place_);
  if (!process.ok()) return process.status();
  made->process_ = *std::move(process);
  return made;
}

ForgetfulFileSystem::~ForgetfulFileSystem() {
  process_.reset();
  rmdir(place_.c_str());
}

absl::Status ForgetfulFileSystem::LosePower(Lost lost) {
  // Creating such a directory is a command to the program (forgetful_fs.cc), which answers it with
  // ENODATA.
  const std::string command = absl::StrCat(place_, "/lose-", lost == Lost::kAll ? "all" : "some");
  if (mkdir(command.c_str(), 0700) == 0 || errno != ENODATA) {
    return absl::ErrnoToStatus(errno, command);
  }
  return absl::OkStatus();
}

}  // namespace cadre
