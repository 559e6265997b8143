#include "rendezvous/log/state_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace cadre::log {
namespace {

absl::Status Unusable(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot keep state in ", path, ": ", why,
                   "; give --state-dir a directory that this user can write"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Lock(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) return Unusable(path, error.message());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Unusable(path, strerror(errno));
  const std::string lock = absl::StrCat(path, "/lock");
  const int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Unusable(path, strerror(errno));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int why = errno;
    close(fd);
    if (why != EWOULDBLOCK) return Unusable(path, strerror(why));
    return absl::AlreadyExistsError(
        absl::StrCat("another server keeps its state in ", path,
                     ": stop it, or give this one a --state-dir of its own"));
  }
  return std::unique_ptr<StateDirectory>(new StateDirectory(path, fd));
}

StateDirectory::~StateDirectory() { close(fd_); }

}  // namespace cadre::log
