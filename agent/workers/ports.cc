#include "agent/workers/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/socket_table.h"
#include "base/text.h"

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

absl::StatusOr<PortReservation> PortReservation::Acquire(const std::string& address) {
  sockaddr_storage storage;
  const socklen_t size = AnyPort(address, storage);
  PortReservation hold;
  hold.fd_ = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (hold.fd_ < 0 || bind(hold.fd_, reinterpret_cast<sockaddr*>(&storage), size) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot find a free port on ", address.empty() ? "any" : address));
  }
  // Set after the bind: the kernel has then chosen a port that no other process has, and a worker
  // that sets it too can bind this port at any moment.
  const int on = 1;
  setsockopt(hold.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  hold.port_ = BoundPort(hold.fd_);
  return hold;
}

PortReservation::PortReservation(PortReservation&& other) noexcept { *this = std::move(other); }

PortReservation& PortReservation::operator=(PortReservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  fd_ = std::exchange(other.fd_, -1);
  port_ = std::exchange(other.port_, 0);
  return *this;
}

void PortReservation::Release() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  port_ = 0;
}

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxName = 64;

// Parses a numeric address; nullopt: it is not one.
std::optional<SocketEnd> ParseSocketEnd(const std::string& address) {
  sockaddr_storage at = {};
  if (inet_pton(AF_INET, address.c_str(), &reinterpret_cast<sockaddr_in&>(at).sin_addr) == 1) {
    at.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, address.c_str(), &reinterpret_cast<sockaddr_in6&>(at).sin6_addr) ==
             1) {
    at.ss_family = AF_INET6;
  } else {
    return std::nullopt;
  }
  return SocketEndOf(at);
}

std::optional<TcpSocket> FindListener(const std::string& address, uint16_t port) {
  std::optional<SocketEnd> wanted = ParseSocketEnd(address);
  if (wanted.has_value()) wanted->port = htons(port);
  std::optional<TcpSocket> found;
  ForEachTcpSocket([&](const TcpSocket& socket) {
    const bool matches = !wanted.has_value() || socket.own.IsAnyAddress() || socket.own == *wanted;
    if (socket.listens && socket.own.port == htons(port) && matches) found = socket;
    return !found.has_value();
  });
  return found;
}

bool Has(const fs::path& process, const std::string& socket) {
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(fd->path(), gone) == socket) return true;
  }
  return false;
}

}  // namespace

std::string WhoListensAt(const std::string& address, uint16_t port) {
  const std::optional<TcpSocket> listener = FindListener(address, port);
  if (!listener.has_value()) return "";
  const std::string socket = absl::StrCat("socket:[", listener->inode, "]");
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(process->path().filename().string(), &pid)) continue;
    if (!Has(process->path(), socket)) continue;
    std::string name;
    std::ifstream comm(process->path() / "comm");
    std::getline(comm, name);
    return absl::StrCat(OneLine(name, kMaxName), name.empty() ? "pid " : " (pid ", pid,
                        name.empty() ? "" : ")");
  }
  return absl::StrCat("a process of user id ", listener->uid);
}

}  // namespace cadre::agent
