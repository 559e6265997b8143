// The directories of this user alone, and what is used instead of one whose name another user has
// taken.
#include "base/user_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// The limit of the wait for another process that is making the directory.
constexpr int kTries = 500;
constexpr absl::Duration kPause = absl::Milliseconds(2);

bool IsPrivate(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & 077) == 0;
}

// `variable` is the environment variable that sets the path, for messages.
absl::StatusOr<std::string> MakePrivateDirectory(const std::string& path,
                                                 absl::string_view variable) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const absl::Status why = absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
    return absl::Status(
        why.code(), absl::StrCat(why.message(), "; set ", variable, " to a directory of yours"));
  }
  if (!IsPrivate(path)) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " must be a directory of yours with mode 700: remove or rename it, ",
                     "or set ", variable, " to another directory of yours"));
  }
  return path;
}

// The file that has the name of the directory which is used on this machine instead of `taken`. The
// name of the host is part of its path, because machines may share the home.
absl::StatusOr<std::string> RecordPath(const std::string& taken) {
  ASSIGN_OR_RETURN(const std::string home, HomeDirectory());
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  std::string name = absl::StrCat(host, taken);
  std::replace(name.begin(), name.end(), '/', '-');
  return absl::StrCat(home, "/runtime-", name);
}

// Returns the directory that the record names if it still belongs to this user alone: a user who
// learned the name may have removed or replaced it. Empty: there is none.
std::string RecordedSubstitute(const std::string& record, const std::string& taken) {
  const absl::StatusOr<ScopedFd> file = OpenOwnFile(record, O_RDONLY);
  char text[PATH_MAX];
  const ssize_t size = file.ok() ? read(file->get(), text, sizeof(text)) : 0;
  const std::string path(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return absl::StartsWith(path, taken + "-") && IsPrivate(path) ? path : "";
}

// Makes a directory with a name that others cannot guess, for all processes of this user on this
// machine.
absl::StatusOr<std::string> MakeSubstitute(const std::string& taken) {
  ASSIGN_OR_RETURN(const std::string record, RecordPath(taken));
  ASSIGN_OR_RETURN(const ScopedFd file, OpenOwnFile(record, O_RDWR | O_CREAT, 0600));
  // The lock lets one process make it. If the file system does not support locks, the directory
  // that was recorded last is the one that is found later.
  for (int i = 0; i < kTries && flock(file.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    absl::SleepFor(kPause);
  }
  std::string path = RecordedSubstitute(record, taken);
  if (!path.empty()) return path;
  path = taken + "-XXXXXX";
  if (mkdtemp(&path[0]) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  }
  if (ftruncate(file.get(), 0) != 0 ||
      pwrite(file.get(), path.data(), path.size(), 0) != static_cast<ssize_t>(path.size())) {
    const absl::Status failed = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", record));
    rmdir(path.c_str());
    return failed;
  }
  fprintf(stderr, "cadre: %s belongs to another user, so %s is used instead, which %s records\n",
          taken.c_str(), path.c_str(), record.c_str());
  return path;
}

bool BelongsToOther(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && info.st_uid != geteuid();
}

std::string PathIn(const std::string& parent) { return absl::StrCat(parent, "/cadre-", geteuid()); }

}  // namespace

absl::StatusOr<std::string> UserDirectoryIn(const std::string& parent) {
  const std::string path = PathIn(parent);
  absl::StatusOr<std::string> own = MakePrivateDirectory(path, "XDG_RUNTIME_DIR");
  if (!absl::IsPermissionDenied(own.status()) || !BelongsToOther(path)) return own;
  absl::StatusOr<std::string> instead = MakeSubstitute(path);
  return instead.ok() ? instead : own;
}

std::string FindUserDirectoryIn(const std::string& parent) {
  const std::string path = PathIn(parent);
  if (IsPrivate(path)) return path;
  const absl::StatusOr<std::string> record =
      BelongsToOther(path) ? RecordPath(path) : absl::NotFoundError("");
  return record.ok() ? RecordedSubstitute(*record, path) : "";
}

absl::StatusOr<std::string> RuntimeDirectory() {
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  // Containers and `su` often leave a variable behind that names a directory which is not there.
  const bool usable = runtime != nullptr && runtime[0] == '/' && access(runtime, W_OK | X_OK) == 0;
  return UserDirectoryIn(usable ? runtime : "/tmp");
}

std::string UserHome() {
  const char* const home = getenv("HOME");
  if (home != nullptr && home[0] != '\0') return home;
  // A longer entry is not accepted as a home.
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
  return MakePrivateDirectory(absl::StrCat(home, "/.cadre"), "HOME");
}

}  // namespace cadre
