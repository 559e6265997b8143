// The rendezvous endpoint: parses "host:port", resolves its address, and finds out whether that is
// this machine's. Blocks on name resolution only.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_ENDPOINT_H_
#define CADRE_LAUNCHER_ENVIRONMENT_ENDPOINT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {

// torchrun's port for its c10d rendezvous.
inline constexpr int kDefaultRendezvousPort = 29400;

struct Endpoint {
  std::string host;
  int port = kDefaultRendezvousPort;
};

// More than any installation has servers.
inline constexpr size_t kEndpointsMax = 16;

// "host", "host:port", "[::1]:port".
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, int default_port);
// One or several endpoints, separated by commas.
absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(absl::string_view text, int default_port);

// Parses a host alone, as for --host: removes the brackets that may enclose an IPv6 address.
std::string HostIn(absl::string_view text);

struct ResolvedEndpoint {
  // Numeric, without brackets.
  std::string address;
  int port = 0;
  bool loopback = false;
  // The address belongs to an interface of this machine.
  bool here = false;
};

// UNAVAILABLE: the name has no address (now).
absl::StatusOr<ResolvedEndpoint> Resolve(const Endpoint& endpoint);

// Whether `host` means the same on all machines: an address, "localhost" or another of its names.
// Any other name may resolve to loopback on this machine and to a network address on others.
bool SaysWhereItIs(const std::string& host);

// "address:port", with brackets around IPv6.
std::string HostPort(absl::string_view address, int port);

// The address at which the machine `peer` (numeric) reaches this one: the source address of the
// route to it. Sends nothing. Empty if there is no route.
std::string AddressTowards(const std::string& peer, int port);

// Likewise for machines that are not known yet: by the default route.
std::string AddressTowardsOthers();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_ENDPOINT_H_
