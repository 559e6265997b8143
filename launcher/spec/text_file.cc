#include "launcher/spec/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre::launcher {
namespace {

constexpr size_t kFirstBytes = size_t{64} << 10;

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  const absl::Cleanup close_file = [fd] { close(fd); };
  return ReadTextFrom(fd, path, max_bytes);
}

absl::StatusOr<std::string> ReadTextFrom(int fd, const std::string& path, size_t max_bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  std::string text;
  size_t used = 0;
  ssize_t got = 0;
  do {
    // One byte more than allowed shows that the file is too large.
    text.resize(std::min(max_bytes + 1, std::max(kFirstBytes, 2 * used)));
    got = read(fd, &text[used], text.size() - used);
    used += std::max<ssize_t>(got, 0);
  } while (got > 0 && used <= max_bytes);
  if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  if (used > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": it has ", info.st_size,
                                                   " bytes; at most ", max_bytes, " are allowed"));
  }
  text.resize(used);
  return text;
}

}  // namespace cadre::launcher
