#include "agent/workers/port_hold.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre::agent {
namespace {

// The socket address of `address` with port 0.
socklen_t AnyPort(const std::string& address, sockaddr_storage& storage) {
  storage = {};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    return sizeof(*v6);
  }
  if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) != 1) v4->sin_addr.s_addr = INADDR_ANY;
  v4->sin_family = AF_INET;
  return sizeof(*v4);
}

uint16_t BoundPort(int fd) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size);
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

}  // namespace

absl::StatusOr<PortHold> PortHold::Acquire(const std::string& address) {
  sockaddr_storage storage;
  const socklen_t size = AnyPort(address, storage);
  PortHold hold;
  hold.fd_ = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (hold.fd_ < 0 || bind(hold.fd_, reinterpret_cast<sockaddr*>(&storage), size) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot find a free port on ", address.empty() ? "any" : address));
  }
  // Set after the bind: the kernel then chose a port that nobody else has, and a worker that sets
  // it too can bind this one at any moment.
  const int on = 1;
  setsockopt(hold.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  hold.port_ = BoundPort(hold.fd_);
  return hold;
}

PortHold::PortHold(PortHold&& other) noexcept { *this = std::move(other); }

PortHold& PortHold::operator=(PortHold&& other) noexcept {
  if (this == &other) return *this;
  Release();
  fd_ = std::exchange(other.fd_, -1);
  port_ = std::exchange(other.port_, 0);
  return *this;
}

void PortHold::Release() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  port_ = 0;
}

}  // namespace cadre::agent
