#include "worker_runtime/sockets/endpoint.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::sockets {
namespace {

// A silent peer is asked after this long, then so often.
constexpr int kSilenceSeconds = 20;
constexpr int kAskAgainSeconds = 10;
constexpr int kQuestions = 3;
// Looked again in between, so that no wait hangs on a poll() that missed its time.
constexpr int kPollMillis = 1000;
constexpr unsigned kUntakenMillis = 50000;
// All ranks may come at once, and strangers too; the system has a limit of its own.
constexpr int kBacklog = 4096;

Status Failed(absl::string_view what, int error) {
  return UnavailableError(absl::StrCat(what, ": ", ErrnoText(error)));
}

struct OwnName {
  int family = 0;
  std::string host, port;
};

OwnName NameOf(int socket) {
  sockaddr_storage own = {};
  socklen_t bytes = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  getsockname(socket, address, &bytes);
  getnameinfo(address, bytes, host, sizeof(host), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {own.ss_family, host, port};
}

ScopedFd NewSocket(int family) {
  return ScopedFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

Result<ScopedFd> Listen(const std::string& address, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int unknown = getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (unknown != 0) {
    return UnavailableError(absl::StrCat("'", address, "': ", gai_strerror(unknown)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  int error = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    ScopedFd listener = NewSocket(at->ai_family);
    if (!listener.ok()) {
      error = errno;
      continue;
    }
    const int on = port == 0 ? 0 : 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(listener.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        listen(listener.get(), kBacklog) == 0) {
      return listener;
    }
    error = errno;
  }
  return Failed(
      absl::StrCat("cannot listen at ", address, port == 0 ? "" : absl::StrCat(":", port)), error);
}

std::string EndpointOf(const ScopedFd& listener) {
  const OwnName own = NameOf(listener.get());
  return own.family == AF_INET6 ? absl::StrCat("[", own.host, "]:", own.port)
                                : absl::StrCat(own.host, ":", own.port);
}

std::string AddressOf(int socket) {
  std::string host = NameOf(socket).host;
  // One of IPv4 that a socket of both kinds listens at.
  const absl::string_view mapped = "::ffff:";
  return absl::StartsWith(host, mapped) ? host.substr(mapped.size()) : host;
}

Result<ScopedFd> StartConnecting(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  absl::string_view host = absl::string_view(endpoint).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (colon == std::string::npos ||
      getaddrinfo(std::string(host).c_str(), &endpoint[colon + 1], &hints, &found) != 0) {
    return InvalidArgumentError(
        absl::StrCat(Quoted(endpoint), " is no endpoint such as 10.0.0.1:4567"));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  ScopedFd socket = NewSocket(found->ai_family);
  if (socket.ok() &&
      (connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS)) {
    return socket;
  }
  return Failed(endpoint, errno);
}

Result<ScopedFd> ConnectBefore(MonoTime deadline, const std::string& endpoint) {
  ASSIGN_OR_RETURN(ScopedFd socket, StartConnecting(endpoint));
  if (!AwaitEvent(socket, POLLOUT, deadline)) return Failed(endpoint, ETIMEDOUT);
  const int error = ErrorOf(socket);
  if (error != 0) return Failed(endpoint, error);
  SetUp(socket);
  return socket;
}

int ErrorOf(const ScopedFd& socket) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

void SetUp(const ScopedFd& socket) {
  const int fd = socket.get(), on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kSilenceSeconds, sizeof(kSilenceSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kAskAgainSeconds, sizeof(kAskAgainSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kQuestions, sizeof(kQuestions));
}

void NoticeUntaken(const ScopedFd& socket) {
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUntakenMillis, sizeof(kUntakenMillis));
}

int MillisUntil(MonoTime deadline, int limit) {
  const absl::Duration left =
      std::clamp(deadline - MonoNow(), absl::ZeroDuration(), absl::Milliseconds(limit));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

bool AwaitEvent(const ScopedFd& socket, short events, MonoTime deadline) {
  while (MonoNow() < deadline) {
    pollfd wait = {socket.get(), events, 0};
    if (poll(&wait, 1, MillisUntil(deadline, kPollMillis)) > 0) return true;
  }
  return false;
}

}  // namespace cadre::sockets
