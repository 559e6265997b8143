#include "worker_runtime/sockets/tcp_socket.h"

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

// Keepalive: a silent peer is probed after this long, then at intervals of kAskAgainSeconds.
constexpr int kSilenceSeconds = 20;
constexpr int kAskAgainSeconds = 10;
constexpr int kQuestions = 3;
// Waits poll again at this interval, so that none depends on a poll() that missed its timeout.
constexpr int kPollMillis = 1000;
constexpr unsigned kUntakenMillis = 50000;
// All ranks may connect at once, and unauthenticated clients too; the system has a limit of its
// own.
constexpr int kBacklog = 4096;

Status Failed(absl::string_view what, int error) {
  return UnavailableError(absl::StrCat(what, ": ", ErrnoText(error)));
}

struct SocketName {
  int family = 0;
  std::string host, port;
};

SocketName NameOf(int socket) {
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
  const SocketName own = NameOf(listener.get());
  return own.family == AF_INET6 ? absl::StrCat("[", own.host, "]:", own.port)
                                : absl::StrCat(own.host, ":", own.port);
}

std::string AddressOf(int socket) {
  std::string host = NameOf(socket).host;
  // An IPv4 address appears in this form on a socket that listens for IPv4 and IPv6.
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
        absl::StrCat(Quoted(endpoint), " is not an endpoint such as 10.0.0.1:4567"));
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
  ConfigureSocket(socket);
  return socket;
}

int ErrorOf(const ScopedFd& socket) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

void ConfigureSocket(const ScopedFd& socket) {
  const int fd = socket.get(), on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kSilenceSeconds, sizeof(kSilenceSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kAskAgainSeconds, sizeof(kAskAgainSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kQuestions, sizeof(kQuestions));
}

void DetectUnacknowledgedData(const ScopedFd& socket) {
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

Result<std::vector<std::string>> AddressesOf(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int unknown = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (unknown != 0) {
    return UnavailableError(
        absl::StrCat("no address is known for '", host, "': ", gai_strerror(unknown)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  std::vector<std::string> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST] = "";
    getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
    if (std::find(addresses.begin(), addresses.end(), text) == addresses.end()) {
      addresses.emplace_back(text);
    }
  }
  return addresses;
}

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

bool NamesLoopback(absl::string_view host) {
  return host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == host.npos);
}

bool IsOwn(const std::string& address) {
  // A machine can listen only on its own addresses.
  return IsLoopback(address) || Listen(address).ok();
}

std::string EndpointAt(absl::string_view address, uint16_t port) {
  return absl::StrContains(address, ':') ? absl::StrCat("[", address, "]:", port)
                                         : absl::StrCat(address, ":", port);
}

}  // namespace cadre::sockets
