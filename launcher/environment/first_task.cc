#include "launcher/environment/first_task.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/user_directory.h"
#include "launcher/environment/signals.h"

namespace cadre::launcher {
namespace {

constexpr int kBacklog = 4096;
// The interval between attempts to reach a first task that has not started yet.
constexpr absl::Duration kLook = absl::Milliseconds(20);

absl::StatusOr<std::string> PathFor(const std::string& name) {
  ASSIGN_OR_RETURN(const std::string directory, RuntimeDirectory());
  std::string path = absl::StrCat(directory, "/", name, ".tasks");
  if (path.size() < sizeof(sockaddr_un::sun_path)) return path;
  return absl::FailedPreconditionError(
      absl::StrCat("socket path ", path, " is too long; set XDG_RUNTIME_DIR to a short one"));
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

int MakeSocket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

bool WaitReadable(int fd, MonoTime until) {
  while (true) {
    pollfd ready = {fd, POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(until - MonoNow());
    const int n = poll(&ready, 1, static_cast<int>(left < 0 ? 0 : left));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

// Returns a connected socket.
absl::StatusOr<int> ReachFirstTask(const std::string& path, absl::Duration timeout) {
  const sockaddr_un address = AddressOf(path);
  const MonoTime until = MonoNow() + timeout;
  while (true) {
    const int fd = MakeSocket();
    if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    close(fd);
    if (MonoNow() >= until) {
      return absl::UnavailableError(
          absl::StrCat("the first task of this node, which runs its workers, did not start within ",
                       absl::FormatDuration(timeout), " (", path, ")"));
    }
    const Interruptible wait;
    absl::SleepFor(kLook);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<FirstTask>> FirstTask::Open(const std::string& name) {
  ASSIGN_OR_RETURN(const std::string path, PathFor(name));
  const int fd = MakeSocket();
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  std::unique_ptr<FirstTask> task(new FirstTask(path, fd));
  // The socket may be left from an earlier, killed attempt of the launch.
  unlink(path.c_str());
  const sockaddr_un address = AddressOf(path);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd, kBacklog) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen at ", path));
  }
  return task;
}

FirstTask::~FirstTask() {
  if (fd_ < 0) return;
  unlink(path_.c_str());
  close(fd_);
}

void FirstTask::End(int status, uint32_t others, absl::Duration timeout) {
  if (fd_ < 0) return;
  const MonoTime until = MonoNow() + timeout;
  const unsigned char said = static_cast<unsigned char>(status);
  for (uint32_t i = 0; i < others && WaitReadable(fd_, until); ++i) {
    const int other = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (other < 0) continue;
    // One byte always fits into the socket's buffer; a task that has gone does not need it.
    send(other, &said, 1, MSG_NOSIGNAL);
    close(other);
  }
  unlink(path_.c_str());
  close(fd_);
  fd_ = -1;
}

absl::StatusOr<int> FollowFirstTask(const std::string& name, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::string path, PathFor(name));
  ASSIGN_OR_RETURN(const int fd, ReachFirstTask(path, timeout));
  unsigned char status = 0;
  ssize_t got = 0;
  do {
    got = recv(fd, &status, 1, 0);
  } while (got < 0 && errno == EINTR);
  close(fd);
  if (got == 1) return status;
  return absl::UnavailableError(
      "the first task of this node, which ran its workers, died and left no exit status");
}

}  // namespace cadre::launcher
