#include "worker_runtime/store/connect_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cadre::store {
namespace {

Status NoConnection(absl::string_view what, int error) {
  return UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

}  // namespace

Result<ScopedFd> ConnectToUnixSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError(absl::StrCat("socket path ", path, " is too long"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return NoConnection("no socket", errno);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  return NoConnection(path, errno);
}

}  // namespace cadre::store
