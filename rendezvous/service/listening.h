// Listens on an address, or explains why that fails. Thread safe; blocks while the name is
// resolved.
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

// Whether all addresses of the host are loopback addresses. INVALID_ARGUMENT: it does not resolve.
absl::StatusOr<bool> IsLoopback(const std::string& host);

struct Listening {
  // One per address of the host; non-blocking.
  std::vector<ScopedFd> sockets;
  int port = 0;
};
// 0.0.0.0 and :: mean every address of both families. Port 0 chooses a free port. Errors as
// Server::Start.
absl::StatusOr<Listening> Listen(const std::string& host, int port);

// Binds the port and releases it. Errors as Server::Start.
absl::Status CheckListen(const std::string& host, int port);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_LISTENING_H_
