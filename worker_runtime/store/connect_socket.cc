#include "worker_runtime/store/connect_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cadre::store {
namespace {

Status NoConnection(absl::string_view what, int error) {
  return UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

}  // namespace

Result<int> ConnectToUnixSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError(absl::StrCat("socket path ", path, " is too long"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return NoConnection("no socket", errno);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const int error = errno;
  close(fd);
  return NoConnection(path, error);
}

}  // namespace cadre::store
