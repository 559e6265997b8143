#include "agent/torch_store/listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

// The kernel cuts it to net.core.somaxconn.
constexpr int kBacklog = 16384;
// Seconds until a silent machine is asked, between questions, and how many remain unanswered.
constexpr int kIdle = 60, kBetween = 10, kQuestions = 6;

void Set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

}  // namespace

absl::StatusOr<ScopedFd> ListenAt(const std::string& address, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  // Nothing is looked up.
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(address), " is no numeric address"));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> at(found, freeaddrinfo);
  ScopedFd listener(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (listener.ok()) {
    const int fd = listener.get();
    Set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    // The connections have these from their listener.
    Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
    Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kBetween);
    Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kQuestions);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return listener;
  }
  const int error = errno;
  const std::string text =
      absl::StrCat("cannot listen at ", address, ", port ", port, ": ", strerror(error));
  return error == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::UnavailableError(text);
}

uint16_t PortOf(const ScopedFd& listener) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&storage), &size);
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

}  // namespace cadre::agent
