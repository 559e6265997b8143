#include "rendezvous/web/dashboard/open_below.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_split.h"

namespace cadre::web {

int OpenBelow(const std::string& root, absl::string_view relative) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  const std::vector<std::string> names = absl::StrSplit(relative, '/', absl::SkipEmpty());
  int fd = open(root.c_str(), kFlags | O_DIRECTORY);
  for (size_t i = 0; i < names.size() && fd >= 0; ++i) {
    const bool last = i + 1 == names.size();
    int next = -1;
    if (names[i] == "..") {
      errno = EINVAL;
    } else {
      next = openat(fd, names[i].c_str(), kFlags | O_NOFOLLOW | (last ? 0 : O_DIRECTORY));
    }
    const int error = errno;
    close(std::exchange(fd, next));
    errno = error;
  }
  struct stat found;
  if (fd < 0 || (fstat(fd, &found) == 0 && S_ISREG(found.st_mode))) return fd;
  close(fd);
  errno = EINVAL;
  return -1;
}

}  // namespace cadre::web
