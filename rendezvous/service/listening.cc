#include "rendezvous/service/listening.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::service {
namespace {

constexpr int kPortMax = 65535;
// If sockets begin to listen on a port at the same moment, all of them may fail (Linux explains in
// inet_csk_listen_start that each is announced before it is checked). A socket that fails is bound
// again, which fails at once if another one listens by then.
constexpr int kMostTries = 10;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return Addresses(found, &freeaddrinfo);
  return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", HostPort(host, port),
                                                 ": the host does not resolve (",
                                                 gai_strerror(error), ")"));
}

bool IsLoopbackAddress(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

absl::Status Explain(int error, const std::string& host, int port) {
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(
          absl::StrCat("port ", port, " on ", host,
                       " is in use; choose another one, or 0 for any that is free"));
    case EACCES:
      return absl::PermissionDeniedError(
          absl::StrCat("port ", port, " on ", host, " needs privileges; choose one above 1023"));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", HostPort(host, port),
                                                     ": not an address of this machine"));
    default:
      return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", HostPort(host, port)));
  }
}

bool IsEveryAddress(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

absl::StatusOr<int> PortOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::ErrnoToStatus(errno, "getsockname");
  }
  // The port has the same offset in both structures.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void SetOptions(int socket, int family) {
  const int on = 1, off = 0;
  // Lingering connections of an earlier server do not block the port, a listener does.
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Accepted sockets inherit it.
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (family == AF_INET6) setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
}

// Binds one socket per address whose family the kernel supports. Port 0 is replaced by the port
// that was chosen.
absl::StatusOr<std::vector<ScopedFd>> Bind(const std::string& host, int* port) {
  if (*port < 0 || *port > kPortMax) {
    return absl::InvalidArgumentError(absl::StrCat("port ", *port, " is not in 0..", kPortMax));
  }
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, *port));
  std::vector<ScopedFd> sockets;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    ScopedFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // A machine without IPv6 still resolves names to it.
    if (!fd.ok()) continue;
    SetOptions(fd.get(), at->ai_family);
    // The port has the same offset in both structures.
    reinterpret_cast<sockaddr_in*>(at->ai_addr)->sin_port = htons(static_cast<uint16_t>(*port));
    if (bind(fd.get(), at->ai_addr, at->ai_addrlen) != 0) return Explain(errno, host, *port);
    ASSIGN_OR_RETURN(*port, PortOf(fd.get()));
    sockets.push_back(std::move(fd));
  }
  return sockets;
}

// ABORTED: another socket began to listen there at the same moment, or was about to.
absl::StatusOr<Listening> ListenOnce(const std::string& host, int port) {
  Listening listening;
  ASSIGN_OR_RETURN(listening.sockets, Bind(IsEveryAddress(host) ? "::" : host, &port));
  // The machine has no IPv6.
  if (listening.sockets.empty() && IsEveryAddress(host)) {
    ASSIGN_OR_RETURN(listening.sockets, Bind("0.0.0.0", &port));
  }
  for (const ScopedFd& socket : listening.sockets) {
    if (listen(socket.get(), SOMAXCONN) == 0) continue;
    if (errno == EADDRINUSE) return absl::AbortedError("it was free when it was bound");
    return Explain(errno, host, port);
  }
  if (listening.sockets.empty()) return Explain(EADDRNOTAVAIL, host, port);
  listening.port = port;
  return listening;
}

}  // namespace

std::string HostPort(const std::string& host, int port) {
  const bool bare_v6 = host.find(':') != std::string::npos && host.front() != '[';
  return bare_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<bool> IsLoopback(const std::string& host) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, 0));
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    if (!IsLoopbackAddress(at->ai_addr)) return false;
  }
  return true;
}

absl::StatusOr<Listening> Listen(const std::string& host, int port) {
  absl::StatusOr<Listening> listening = ListenOnce(host, port);
  for (int tries = 1; tries < kMostTries && absl::IsAborted(listening.status()); ++tries) {
    listening = ListenOnce(host, port);
  }
  if (absl::IsAborted(listening.status())) return Explain(EADDRINUSE, host, port);
  return listening;
}

absl::Status CheckListen(const std::string& host, int port) { return Bind(host, &port).status(); }

}  // namespace cadre::service
