#include "agent/local/local_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/local/agent_cleanup.h"
#include "base/progress_snapshot.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "base/user_directory.h"

namespace cadre::agent {
namespace {

constexpr int kBacklog = 1024;
// The limit of agents in one process, plus directories left by killed ones of the same pid.
constexpr int kMaxDirectoriesPerPid = 1000;
// The number checked by one sweep, so that a full directory does not delay a start.
constexpr int kMaxSweptDirectories = 256;
// A newer directory may belong to an agent that does not listen in it yet, in a container that
// shares this directory but has its own PID namespace.
constexpr time_t kSweptAfterSeconds = 60;
// The most that All() returns.
constexpr size_t kMaxDirectories = 4096;
// The longest suffix appended to the parent: "/cadre-4294967295/agent-4194304-999/socket-store". A
// directory with a random name is longer and is not considered here.
constexpr size_t kLongestSuffix = 48;
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

// The fallback parent.
constexpr char kAnyPlace[] = "/tmp";

bool IsThere(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string Parent(const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (runtime == nullptr || runtime[0] != '/') return kAnyPlace;
  if (strlen(runtime) + kLongestSuffix > kMaxSocketPath || access(runtime, W_OK | X_OK) != 0) {
    return kAnyPlace;
  }
  return runtime;
}

// An error from errno, with a hint that XDG_RUNTIME_DIR chooses the parent.
absl::Status CannotMake(const std::string& path) {
  const absl::Status why = absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  return absl::Status(
      why.code(), absl::StrCat(why.message(), "; set XDG_RUNTIME_DIR to a directory of yours, of ",
                               kMaxSocketPath - kLongestSuffix, " characters at most"));
}

// The pid in "agent-PID" or "agent-PID-N"; 0 for any other name.
pid_t AgentOf(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "agent-")) return 0;
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  pid_t pid = 0;
  uint32_t number = 0;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts[0], &pid) || pid <= 0) return 0;
  if (parts.size() == 2 && !absl::SimpleAtoi(parts[1], &number)) return 0;
  return pid;
}

// Removes the directories of killed agents. A pid that is in use again delays that; what cannot be
// removed stays.
void Sweep(const std::string& user) {
  DIR* directory = opendir(user.c_str());
  if (directory == nullptr) return;
  int examined = 0;
  while (const dirent* entry = readdir(directory)) {
    const pid_t pid = AgentOf(entry->d_name);
    if (pid == 0) continue;  // token files, one for each port
    if (++examined > kMaxSweptDirectories) break;
    struct stat found;
    if (fstatat(dirfd(directory), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0 ||
        found.st_uid != getuid() || !S_ISDIR(found.st_mode) ||
        time(nullptr) - found.st_mtime < kSweptAfterSeconds || kill(pid, 0) == 0 ||
        errno != ESRCH) {
      continue;
    }
    const std::string path = absl::StrCat(user, "/", entry->d_name);
    if (IsListenedOn(AgentSocketPath(path)) || IsListenedOn(LocalDirectory::SupervisorPath(path))) {
      continue;
    }
    RemoveAgentDirectory(path);
  }
  closedir(directory);
}

absl::StatusOr<std::string> AgentDirectory(const std::string& parent) {
  ASSIGN_OR_RETURN(const std::string user, UserDirectoryIn(parent));
  Sweep(user);
  for (int i = 0; i < kMaxDirectoriesPerPid; ++i) {
    const std::string path =
        absl::StrCat(user, "/agent-", getpid(), i == 0 ? "" : absl::StrCat("-", i));
    if (mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) return CannotMake(path);
  }
  return absl::ResourceExhaustedError(absl::StrCat("too many agent directories in ", user,
                                                   "; remove those of processes that are gone"));
}

absl::StatusOr<int> ListenOn(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " is longer than ",
                                                   kMaxSocketPath,
                                                   " bytes; set XDG_RUNTIME_DIR to a shorter one"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      listen(fd, kBacklog) == 0) {
    return fd;
  }
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot listen on ", path));
  if (fd >= 0) close(fd);
  return status;
}

int AcceptAt(int listener) {
  while (true) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return -1;
    ucred peer = {};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
        (peer.uid == getuid() || peer.uid == 0)) {
      return fd;
    }
    close(fd);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalDirectory>> LocalDirectory::Make(const std::string& parent) {
  std::unique_ptr<LocalDirectory> directory(new LocalDirectory);
  ASSIGN_OR_RETURN(directory->path_, AgentDirectory(Parent(parent)));
  directory->token_ = RandomToken();
  RETURN_IF_ERROR(directory->Fill());
  return directory;
}

absl::StatusOr<bool> LocalDirectory::Restore() {
  if (IsThere(CheckpointMemoryPath(path_)) && IsThere(token_path()) && IsThere(socket_path())) {
    return false;
  }
  const std::filesystem::path user = std::filesystem::path(path_).parent_path();
  if (UserDirectoryIn(user.parent_path()).value_or("") == user &&
      (mkdir(path_.c_str(), 0700) == 0 || errno == EEXIST) && Fill().ok()) {
    return true;
  }
  ASSIGN_OR_RETURN(path_, AgentDirectory(kAnyPlace));
  RETURN_IF_ERROR(Fill());
  return true;
}

absl::Status LocalDirectory::Fill() {
  RETURN_IF_ERROR(MakeMemory());
  if (!IsThere(token_path())) RETURN_IF_ERROR(WriteTokenFile(token_path(), token_));
  if (listener_ < 0 || !IsThere(socket_path())) RETURN_IF_ERROR(Listen());
  lock_.Reset(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A file system without locks is accepted.
  if (lock_.ok()) flock(lock_.get(), LOCK_SH | LOCK_NB);
  return absl::OkStatus();
}

// The memory is behind a link in the directory, so that it can be found from the directory. Without
// /dev/shm it is in the directory itself.
absl::Status LocalDirectory::MakeMemory() {
  const std::string path = CheckpointMemoryPath(path_);
  if (IsThere(path)) return absl::OkStatus();
  if (memory_.empty() || !IsThere(memory_)) {
    std::string memory = CheckpointMemoryPrefix() + "XXXXXX";
    memory_ = mkdtemp(memory.data()) != nullptr ? memory : "";
  }
  if (!memory_.empty()) {
    // Remove a dangling link.
    unlink(path.c_str());
    if (symlink(memory_.c_str(), path.c_str()) == 0) return absl::OkStatus();
  }
  if (mkdir(path.c_str(), 0700) != 0) return CannotMake(path);
  return absl::OkStatus();
}

absl::Status LocalDirectory::Listen() {
  // The socket of an earlier agent.
  unlink(socket_path().c_str());
  ASSIGN_OR_RETURN(const int listener, ListenOn(socket_path()));
  if (listener_ >= 0) close(listener_);
  listener_ = listener;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LocalDirectory>> LocalDirectory::Adopt(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string token, ReadTokenFile(TokenPath(path)));
  std::unique_ptr<LocalDirectory> directory(new LocalDirectory);
  directory->path_ = path;
  directory->token_ = token;
  directory->memory_ = LinkedMemory(path);
  RETURN_IF_ERROR(directory->Fill());
  return directory;
}

std::vector<std::string> LocalDirectory::All(const std::string& parent) {
  std::vector<std::string> paths;
  const std::string user = FindUserDirectoryIn(Parent(parent));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(user, error)) {
    if (paths.size() >= kMaxDirectories) break;
    struct stat found;
    if (AgentOf(entry.path().filename().string()) == 0 ||
        lstat(entry.path().c_str(), &found) != 0 || found.st_uid != getuid() ||
        !S_ISDIR(found.st_mode)) {
      continue;
    }
    paths.push_back(entry.path().string());
  }
  return paths;
}

LocalDirectory::~LocalDirectory() {
  if (listener_ >= 0) close(listener_);
  if (path_.empty() || kept_) return;
  RemoveAgentDirectory(path_);
  std::error_code ignored;
  if (!memory_.empty()) std::filesystem::remove_all(memory_, ignored);
}

std::string LocalDirectory::socket_path() const { return AgentSocketPath(path_); }

int LocalDirectory::Accept() { return AcceptAt(listener_); }

}  // namespace cadre::agent
