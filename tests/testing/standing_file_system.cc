#include "tests/testing/standing_file_system.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace cadre {

absl::StatusOr<std::unique_ptr<StandingFileSystem>> StandingFileSystem::Mount() {
  std::unique_ptr<StandingFileSystem> made(new StandingFileSystem);
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

StandingFileSystem::~StandingFileSystem() {
  process_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

void StandingFileSystem::StandStill() {
  kill(process_->pid(), SIGSTOP);
  siginfo_t info = {};
  waitid(P_PID, static_cast<id_t>(process_->pid()), &info, WSTOPPED);
}

void StandingFileSystem::GoOn() { kill(process_->pid(), SIGCONT); }

}  // namespace cadre
