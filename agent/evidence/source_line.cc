#include "agent/evidence/source_line.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/text.h"
#include "base/utf8.h"

namespace cadre::agent {

std::string SourceLine(pid_t process, const std::string& path, int number) {
  const std::string whole =
      !path.empty() && path[0] == '/' ? path : absl::StrCat("/proc/", process, "/cwd/", path);
  // The name comes from the program: what it names may be a pipe that nobody writes to.
  const ScopedFd file(open(whole.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!file.ok() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  std::string line;
  char chunk[16 << 10];
  int at = 1;
  for (size_t total = 0; total < kMaxSourceBytes;) {
    const ssize_t n = read(file.get(), chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    total += static_cast<size_t>(n);
    for (const char* c = chunk; c != chunk + n && at <= number; ++c) {
      if (*c == '\n') {
        ++at;
      } else if (at == number && line.size() < 4 * kMaxSourceLineBytes) {
        line.push_back(*c);
      }
    }
    if (at > number) break;
  }
  return OneLine(ReplaceInvalidUtf8(absl::StripAsciiWhitespace(line)), kMaxSourceLineBytes);
}

}  // namespace cadre::agent
