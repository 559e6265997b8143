#include "tests/testing/forgetful_file_system.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {

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
  // Commands to the program (forgetful_fs.cc), which does them and answers with this error.
  const std::string command = absl::StrCat(place_, "/lose-", lost == Lost::kAll ? "all" : "some");
  if (mkdir(command.c_str(), 0700) == 0 || errno != ENODATA) {
    return absl::ErrnoToStatus(errno, command);
  }
  return absl::OkStatus();
}

}  // namespace cadre
