// Listening on an address, or why that cannot be. Thread safe; the name is resolved, so it may take
// as long as the resolver does.
#ifndef CADRE_RENDEZVOUS_SERVICE_LISTENING_H_
#define CADRE_RENDEZVOUS_SERVICE_LISTENING_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace cadre::service {

// "host:port", with brackets round an IPv6 address.
std::string HostPort(const std::string& host, int port);

// Whether all addresses of the host are loopback ones. INVALID_ARGUMENT: it does not resolve.
absl::StatusOr<bool> IsLoopback(const std::string& host);

struct Listening {
  // One for each of the host's addresses; they do not block.
  std::vector<ScopedFd> sockets;
  int port = 0;
};
// 0.0.0.0 and :: are every address of both families. Port 0: one that is free. Errors as
// Server::Start.
absl::StatusOr<Listening> Listen(const std::string& host, int port);

// Binds the port and lets it go again. Errors as Server::Start.
absl::Status CheckListen(const std::string& host, int port);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_LISTENING_H_
