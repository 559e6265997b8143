#include "rendezvous/log/tail_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace cadre::log {

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
