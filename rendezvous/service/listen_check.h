// Why an address cannot be listened on. gRPC only says that it could not. Thread safe; the name is
// resolved, so it may take as long as the resolver does.
#ifndef CADRE_RENDEZVOUS_SERVICE_LISTEN_CHECK_H_
#define CADRE_RENDEZVOUS_SERVICE_LISTEN_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre::service {

// "host:port", with brackets round an IPv6 address.
std::string HostPort(const std::string& host, int port);

// Whether all addresses of the host are loopback ones. INVALID_ARGUMENT: it does not resolve.
absl::StatusOr<bool> IsLoopback(const std::string& host);

// Binds the port and lets it go again. Errors as Server::Start.
absl::Status CheckListen(const std::string& host, int port);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_LISTEN_CHECK_H_
