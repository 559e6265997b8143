#include "worker_runtime/store/connect_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace cadre::store {
namespace {

constexpr int kConnectTimeoutMs = 5000;
// A silent peer is asked after this long, and given up when it has not answered for so long.
constexpr int kSilenceSeconds = 10;
constexpr unsigned kNoAnswerMs = 15000;
constexpr int kBacklog = 1024;

Status NoConnection(absl::string_view what, int error) {
  return UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

Result<sockaddr_in> ParseAddress(const std::string& address, uint16_t port) {
  sockaddr_in parsed = {};
  parsed.sin_family = AF_INET;
  parsed.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &parsed.sin_addr) == 1) return parsed;
  return InvalidArgumentError(absl::StrCat("'", address, "' is not an IPv4 address"));
}

// 0, or what went wrong.
int FinishConnecting(int fd) {
  if (errno != EINPROGRESS) return errno;
  pollfd wait = {fd, POLLOUT, 0};
  if (poll(&wait, 1, kConnectTimeoutMs) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

void NoticeASilentPeer(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kSilenceSeconds, sizeof(kSilenceSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kNoAnswerMs, sizeof(kNoAnswerMs));
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

Result<int> ConnectToAddress(const std::string& endpoint) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(endpoint, ':');
  uint32_t port = 0;
  if (!absl::SimpleAtoi(parts.second, &port) || port > 65535) {
    return InvalidArgumentError(absl::StrCat("'", endpoint, "' has no port"));
  }
  const Result<sockaddr_in> address = ParseAddress(parts.first, static_cast<uint16_t>(port));
  if (!address.ok()) return address.status();
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return NoConnection("no socket", errno);
  NoticeASilentPeer(fd);
  const bool at_once =
      connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) == 0;
  const int error = at_once ? 0 : FinishConnecting(fd);
  if (error == 0) return fd;
  close(fd);
  return NoConnection(endpoint, error);
}

Result<int> ListenAt(const std::string& address) {
  const Result<sockaddr_in> parsed = ParseAddress(address, 0);
  if (!parsed.ok()) return parsed.status();
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return NoConnection("no socket", errno);
  // What is accepted has these, too.
  NoticeASilentPeer(fd);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&*parsed), sizeof(*parsed)) == 0 &&
      listen(fd, kBacklog) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  return NoConnection(absl::StrCat("cannot listen at ", address), error);
}

std::string EndpointOf(int listener) {
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
  return absl::StrCat(text, ":", ntohs(address.sin_port));
}

}  // namespace cadre::store
