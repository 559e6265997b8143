#include "agent/local/agent_cleanup.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"

namespace cadre::agent {
namespace {

constexpr int kPollMs = 2;

}  // namespace

std::string AgentSocketPath(const std::string& directory) { return directory + "/socket"; }

std::string CheckpointMemoryPrefix() { return absl::StrCat("/dev/shm/cadre-", getuid(), "-"); }

bool IsListenedOn(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  const bool refused = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 &&
                       (errno == ECONNREFUSED || errno == ENOENT);
  close(fd);
  return !refused;
}

std::string LinkedMemory(const std::string& directory) {
  std::error_code ignored;
  std::string memory =
      std::filesystem::read_symlink(CheckpointMemoryPath(directory), ignored).string();
  struct stat found;
  const bool is_ours = absl::StartsWith(memory, CheckpointMemoryPrefix()) &&
                       lstat(memory.c_str(), &found) == 0 && found.st_uid == getuid() &&
                       S_ISDIR(found.st_mode);
  return is_ours ? memory : "";
}

void RemoveAgentDirectory(const std::string& directory) {
  std::error_code ignored;
  const std::string memory = LinkedMemory(directory);
  if (!memory.empty()) std::filesystem::remove_all(memory, ignored);
  std::filesystem::remove_all(directory, ignored);
}

void RemoveOnceAbandoned(const std::string& directory, absl::Duration limit) {
  const MonoTime end = MonoNow() + limit;
  while (IsListenedOn(AgentSocketPath(directory))) {
    if (MonoNow() >= end) return;
    poll(nullptr, 0, kPollMs);
  }
  RemoveAgentDirectory(directory);
}

}  // namespace cadre::agent
