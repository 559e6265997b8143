#include "launcher/attach/loopback_token.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "base/user_directory.h"

namespace cadre::launcher {
namespace {

// Others have the file to themselves while they remove it, which takes them microseconds.
constexpr int kTries = 1000;
constexpr absl::Duration kPause = absl::Milliseconds(2);
// Entries of the directory that are looked at for files to remove.
constexpr int kSwept = 256;

// -1: it is not there, or is no plain file.
int Open(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

bool IsThere(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink > 0;
}

// A server that begins to use it meanwhile waits for the lock, and finds that the file is gone.
void RemoveIfUnused(const std::string& path) {
  const int fd = Open(path);
  if (fd < 0) return;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && IsThere(fd)) unlink(path.c_str());
  close(fd);
}

bool IsTokenFile(absl::string_view name) {
  return absl::ConsumePrefix(&name, "rdzv-") && absl::ConsumeSuffix(&name, ".token") &&
         !name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

void RemoveUnusedIn(const std::string& directory) {
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr) return;
  for (int i = 0; i < kSwept; ++i) {
    const dirent* const entry = readdir(entries);
    if (entry == nullptr) break;
    if (IsTokenFile(entry->d_name)) RemoveIfUnused(absl::StrCat(directory, "/", entry->d_name));
  }
  closedir(entries);
}

// Of this process, by port.
struct Uses {
  std::mutex mutex;
  std::map<int, std::unique_ptr<LoopbackTokenUse>> by_port;
};

Uses& ThisProcess() {
  static auto* const uses = new Uses();
  return *uses;
}

}  // namespace

LoopbackTokenUse::LoopbackTokenUse(std::string path, int fd, std::string token)
    : path_(std::move(path)), fd_(fd), token_(std::move(token)) {}

LoopbackTokenUse::~LoopbackTokenUse() {
  close(fd_);
  RemoveIfUnused(path_);
}

absl::StatusOr<std::unique_ptr<LoopbackTokenUse>> LoopbackTokenUse::Begin(int port) {
  ASSIGN_OR_RETURN(const std::string directory, RuntimeDirectory());
  const std::string path = absl::StrCat(directory, "/rdzv-", port, ".token");
  for (int i = 0; i < kTries; ++i) {
    const absl::Status made = SharedToken(path).status();
    if (absl::IsNotFound(made)) continue;  // removed as soon as it was there
    RETURN_IF_ERROR(made);
    const int fd = Open(path);
    if (fd < 0) continue;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0 && IsThere(fd)) {
      // From now on it stays as it is.
      absl::StatusOr<std::string> token = ReadTokenFile(path);
      if (!token.ok()) {
        close(fd);
        return token.status();
      }
      std::unique_ptr<LoopbackTokenUse> use(new LoopbackTokenUse(path, fd, *std::move(token)));
      RemoveUnusedIn(directory);
      return use;
    }
    close(fd);
    absl::SleepFor(kPause);
  }
  return absl::UnavailableError(
      absl::StrCat("token file ", path, " is locked by another process: remove it"));
}

absl::StatusOr<std::string> LoopbackToken(int port) {
  Uses& uses = ThisProcess();
  const std::lock_guard<std::mutex> lock(uses.mutex);
  std::unique_ptr<LoopbackTokenUse>& use = uses.by_port[port];
  if (use == nullptr) {
    ASSIGN_OR_RETURN(use, LoopbackTokenUse::Begin(port));
  }
  return use->token();
}

void EndLoopbackTokens() {
  Uses& uses = ThisProcess();
  const std::lock_guard<std::mutex> lock(uses.mutex);
  uses.by_port.clear();
}

}  // namespace cadre::launcher
