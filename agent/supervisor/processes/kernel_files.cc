#include "agent/supervisor/processes/kernel_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {
namespace {

constexpr size_t kMaxKernelFileBytes = 64 << 10;

}  // namespace

std::optional<std::string> ReadKernelFile(const std::string& path) {
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return std::nullopt;
  std::string text;
  char chunk[4096];
  while (text.size() < kMaxKernelFileBytes) {
    const ssize_t n = read(fd.get(), chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;
    if (n == 0) break;
    text.append(chunk, static_cast<size_t>(n));
  }
  return text;
}

bool WriteKernelFile(const std::string& path, absl::string_view text) {
  ScopedFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd.ok() && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::optional<uint64_t> ValueOf(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    uint64_t value = 0;
    if (absl::ConsumePrefix(&line, key) && absl::ConsumePrefix(&line, " ") &&
        absl::SimpleAtoi(line, &value)) {
      return value;
    }
  }
  return std::nullopt;
}

std::vector<std::string> Subdirectories(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) {
    const absl::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..") names.emplace_back(name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace cadre::supervisor
