#include "base/user_directory.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cadre {
namespace {

// `variable` of the environment says where it is.
absl::StatusOr<std::string> MakeOwn(const std::string& path, absl::string_view variable) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const absl::Status why = absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
    return absl::Status(
        why.code(), absl::StrCat(why.message(), "; set ", variable, " to a directory of yours"));
  }
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", path));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " must be a directory of yours with mode 700: remove or rename it, ",
                     "or set ", variable, " to another directory of yours"));
  }
  return path;
}

}  // namespace

absl::StatusOr<std::string> RuntimeDirectory() {
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  // Containers and `su` often leave a variable behind that names a directory which is not there.
  const bool usable = runtime != nullptr && runtime[0] == '/' && access(runtime, W_OK | X_OK) == 0;
  return MakeOwn(absl::StrCat(usable ? runtime : "/tmp", "/cadre-", geteuid()), "XDG_RUNTIME_DIR");
}

std::string UserHome() {
  const char* const home = getenv("HOME");
  if (home != nullptr && home[0] != '\0') return home;
  // What is longer than that is no home.
  char text[4096];
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(geteuid(), &entry, text, sizeof(text), &found) != 0 || found == nullptr) return "";
  return found->pw_dir;
}

absl::StatusOr<std::string> HomeDirectory() {
  const std::string home = UserHome();
  if (home.empty() || home[0] != '/') {
    return absl::FailedPreconditionError("HOME is not set to a directory");
  }
  return MakeOwn(absl::StrCat(home, "/.cadre"), "HOME");
}

}  // namespace cadre
