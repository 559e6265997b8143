#include "rendezvous/log/sqlite_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/own_files.h"
#include "base/status_macros.h"

namespace cadre::log {
namespace {

absl::Status Unusable(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot keep state in ", path, ": ", why,
                   "; give --state-dir a directory that this user can write"));
}

// Makes names in the directory durable: a power failure could otherwise remove a directory with all
// that was synced in it. If this user may not open it, it did not create the names in it; and some
// file systems keep names by themselves.
void SyncNamesIn(const std::filesystem::path& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

// The directory's own name is synced at every start, because an earlier server may have been killed
// before it did.
absl::Status Make(const std::string& path) {
  std::error_code error;
  std::filesystem::path directory = std::filesystem::absolute(path, error).lexically_normal();
  if (!directory.has_filename()) directory = directory.parent_path();
  std::vector<std::filesystem::path> above = {directory.parent_path()};
  while (!std::filesystem::exists(above.back(), error) && above.back().has_relative_path()) {
    above.push_back(above.back().parent_path());
  }
  const absl::Status made = MakeDirectories(above.front());
  if (!made.ok()) return Unusable(path, std::string(made.message()));
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Unusable(path, strerror(errno));
  for (const std::filesystem::path& one : above) SyncNamesIn(one);
  // A user who may write there controls what this server starts, and as which user.
  const absl::Status own = OpenOwnDirectory(path).status();
  return own.ok() ? own : Unusable(path, std::string(own.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Lock(const std::string& path) {
  RETURN_IF_ERROR(Make(path));
  const std::string lock = absl::StrCat(path, "/lock");
  absl::StatusOr<ScopedFd> file = OpenOwnFile(lock, O_RDWR | O_CREAT, 0600);
  if (!file.ok()) return Unusable(path, std::string(file.status().message()));
  if (flock(file->get(), LOCK_EX | LOCK_NB) != 0) {
    const int why = errno;
    if (why != EWOULDBLOCK) return Unusable(path, strerror(why));
    return absl::AlreadyExistsError(
        absl::StrCat("another server keeps its state in ", path,
                     ": stop it, or give this one a --state-dir of its own"));
  }
  return std::unique_ptr<StateDirectory>(new StateDirectory(path, *std::move(file)));
}

absl::StatusOr<std::unique_ptr<TailFile>> TailFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
  return std::unique_ptr<TailFile>(new TailFile(fd));
}

TailFile::~TailFile() { close(fd_); }

std::optional<Tail> TailFile::Read() const {
  Tail tail;
  if (pread(fd_, &tail, sizeof(tail), 0) != sizeof(tail)) return std::nullopt;
  return tail;
}

absl::Status TailFile::Write(const Tail& tail) const {
  if (pwrite(fd_, &tail, sizeof(tail), 0) == sizeof(tail)) return absl::OkStatus();
  return errno == ENOSPC ? absl::ResourceExhaustedError("no space is left")
                         : absl::UnavailableError(strerror(errno));
}

}  // namespace cadre::log
