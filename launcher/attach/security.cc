#include "launcher/attach/security.h"

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
#include "base/bearer_token.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "base/user_directory.h"
#include "launcher/environment/signals.h"

namespace cadre::launcher {

absl::StatusOr<rpc::TransportSecurity> SecurityOf(const std::string& tls_dir, bool insecure,
                                                  const FoundToken& token, bool loopback) {
  if (insecure && !tls_dir.empty()) {
    return absl::InvalidArgumentError(
        "--insecure: --tls-dir encrypts all connections; leave one of the two flags out");
  }
  rpc::TransportSecurity security;
  security.tls_dir = tls_dir;
  security.insecure = insecure;
  if (insecure || !tls_dir.empty()) return security;
  security.by_token = !ServerKeyInToken(token.token).empty();
  if (security.by_token || loopback) return security;
  return absl::InvalidArgumentError(absl::StrCat("--token-file: ", rpc::kNoServerKey));
}

rpc::TransportSecurity ForServer(rpc::TransportSecurity security, const FoundToken& token) {
  if (security.insecure) security.by_token = !ServerKeyInToken(token.token).empty();
  return security;
}

namespace {

// A process holds the lock exclusively while it removes the file, which takes microseconds.
constexpr int kTries = 1000;
constexpr absl::Duration kRetryInterval = absl::Milliseconds(2);
// The number of directory entries that are checked for files to remove.
constexpr int kMaxEntriesChecked = 256;

// -1: the file is missing or not a regular one.
int Open(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

bool StillExists(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink > 0;
}

// A process that begins to use the file meanwhile waits for the lock, and finds that the file is
// gone.
void RemoveIfUnused(const std::string& path) {
  const int fd = Open(path);
  if (fd < 0) return;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && StillExists(fd)) unlink(path.c_str());
  close(fd);
}

bool IsTokenFile(absl::string_view name) {
  return absl::ConsumePrefix(&name, "rdzv-") && absl::ConsumeSuffix(&name, ".token") &&
         !name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

void RemoveUnusedIn(const std::string& directory) {
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr) return;
  for (int i = 0; i < kMaxEntriesChecked; ++i) {
    const dirent* const entry = readdir(entries);
    if (entry == nullptr) break;
    if (IsTokenFile(entry->d_name)) RemoveIfUnused(absl::StrCat(directory, "/", entry->d_name));
  }
  closedir(entries);
}

// The uses of this process, by port.
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
    if (absl::IsNotFound(made)) continue;  // removed just after it was created
    RETURN_IF_ERROR(made);
    const int fd = Open(path);
    if (fd < 0) continue;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0 && StillExists(fd)) {
      // From now on the file does not change.
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
    absl::SleepFor(kRetryInterval);
  }
  return absl::UnavailableError(
      absl::StrCat("token file ", path, " is locked by another process: remove the file"));
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

absl::StatusOr<FoundToken> FindToken(const std::string& token_file, const std::string& host,
                                     int port, bool loopback) {
  if (!token_file.empty()) {
    const bool is_file = token_file != "-";
    absl::StatusOr<std::string> token = [&] {
      const Interruptible wait;
      return is_file ? ReadTokenFile(token_file) : ReadTokenFrom(STDIN_FILENO);
    }();
    if (token.ok()) return FoundToken{*std::move(token), is_file ? token_file : ""};
    return absl::InvalidArgumentError(absl::StrCat("--token-file: ", token.status().message()));
  }
  if (loopback) {
    ASSIGN_OR_RETURN(std::string token, LoopbackToken(port));
    return FoundToken{std::move(token)};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(host,
                   " is not on this machine's loopback, so a token is needed: make one with 'cadre "
                   "token new FILE', give every node a copy, and add --token-file FILE"));
}

}  // namespace cadre::launcher
