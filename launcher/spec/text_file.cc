#include "launcher/spec/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  const absl::Cleanup close_file = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  // One byte more than allowed tells that there is more.
  std::string text(max_bytes + 1, '\0');
  size_t used = 0;
  ssize_t got = 0;
  while (used < text.size() && (got = read(fd, &text[used], text.size() - used)) > 0) used += got;
  if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  if (used > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", info.st_size, " bytes; at most ", max_bytes, " are read"));
  }
  text.resize(used);
  return text;
}

}  // namespace cadre
