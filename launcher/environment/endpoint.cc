#include "launcher/environment/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cadre::launcher {
namespace {

absl::Status BadEndpoint(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("malformed endpoint '", text.substr(0, 256),
                                                 "': ", why, "; expected host or host:port"));
}

// With or without a zone, as in fe80::1%eth0.
bool IsIpv6(absl::string_view host) {
  in6_addr address;
  return inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address) == 1;
}

bool Loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return false;
}

bool SameAddress(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  if (a->sa_family != AF_INET6) return false;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

bool BelongsHere(const sockaddr* address) {
  if (Loopback(address)) return true;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return false;
  bool here = false;
  for (const ifaddrs* i = interfaces; i != nullptr && !here; i = i->ifa_next) {
    here = i->ifa_addr != nullptr && SameAddress(i->ifa_addr, address);
  }
  freeifaddrs(interfaces);
  return here;
}

std::string Numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, int default_port) {
  Endpoint endpoint;
  endpoint.port = default_port;
  absl::string_view port;
  bool has_port = false;
  if (!text.empty() && text[0] == '[') {
    const size_t close = text.find(']');
    if (close == text.npos) return BadEndpoint(text, "the bracket is not closed");
    endpoint.host = std::string(text.substr(1, close - 1));
    const absl::string_view after = text.substr(close + 1);
    if (!after.empty() && after[0] != ':') return BadEndpoint(text, "text after the bracket");
    has_port = !after.empty();
    if (has_port) port = after.substr(1);
  } else if (const size_t colon = text.find(':');
             colon != text.npos && text.find(':', colon + 1) == text.npos) {
    endpoint.host = std::string(text.substr(0, colon));
    port = text.substr(colon + 1);
    has_port = true;
  } else {
    // No colon, or an IPv6 address without brackets.
    endpoint.host = std::string(text);
  }
  if (endpoint.host.empty()) return BadEndpoint(text, "the host is missing");
  if (text.find("://") != text.npos) return BadEndpoint(text, "a URL is not a host name");
  if (endpoint.host.find_first_of("/ \t") != std::string::npos) {
    return BadEndpoint(text, absl::StrCat("'", endpoint.host, "' is not a host name"));
  }
  if ((text[0] == '[' || endpoint.host.find(':') != std::string::npos) && !IsIpv6(endpoint.host)) {
    return BadEndpoint(text, absl::StrCat("'", endpoint.host, "' is not an IPv6 address"));
  }
  if (has_port &&
      (!absl::SimpleAtoi(port, &endpoint.port) || endpoint.port < 1 || endpoint.port > 65535)) {
    return BadEndpoint(text, absl::StrCat("'", port, "' is not a port from 1 to 65535"));
  }
  return endpoint;
}

absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(absl::string_view text, int default_port) {
  std::vector<Endpoint> endpoints;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::StatusOr<Endpoint> endpoint =
        ParseEndpoint(absl::StripAsciiWhitespace(part), default_port);
    if (!endpoint.ok()) return endpoint.status();
    endpoints.push_back(*endpoint);
  }
  if (endpoints.size() <= kEndpointsMax) return endpoints;
  return absl::InvalidArgumentError(
      absl::StrCat("expected at most ", kEndpointsMax, " endpoints, got ", endpoints.size()));
}

std::string HostIn(absl::string_view text) {
  const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
  return std::string(bracketed ? text.substr(1, text.size() - 2) : text);
}

absl::StatusOr<ResolvedEndpoint> Resolve(const Endpoint& endpoint) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(endpoint.host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot find host '", endpoint.host, "': ", gai_strerror(error)));
  }
  // An address of this machine is preferred, so that exactly its owner serves; then IPv4.
  const addrinfo* chosen = found;
  bool here = BelongsHere(found->ai_addr);
  for (const addrinfo* i = found; i != nullptr && !here; i = i->ai_next) {
    if (BelongsHere(i->ai_addr)) {
      chosen = i;
      here = true;
    } else if (chosen->ai_family != AF_INET && i->ai_family == AF_INET) {
      chosen = i;
    }
  }
  ResolvedEndpoint resolved;
  resolved.address = Numeric(chosen->ai_addr, chosen->ai_addrlen);
  resolved.port = endpoint.port;
  resolved.loopback = Loopback(chosen->ai_addr);
  resolved.here = here;
  freeaddrinfo(found);
  return resolved;
}

bool SaysWhereItIs(const std::string& host) {
  const std::string name = absl::AsciiStrToLower(host);
  for (const char* const loopback : {"localhost", "localhost.localdomain", "localhost4",
                                     "localhost6", "ip6-localhost", "ip6-loopback"}) {
    if (name == loopback) return true;
  }
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

std::string HostPort(absl::string_view address, int port) {
  if (address.find(':') == address.npos) return absl::StrCat(address, ":", port);
  return absl::StrCat("[", address, "]:", port);
}

std::string AddressTowards(const std::string& peer, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(peer.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return "";
  std::string address;
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  // Connecting a datagram socket only chooses the route.
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
    sockaddr_storage own;
    socklen_t size = sizeof(own);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0) {
      address = Numeric(reinterpret_cast<sockaddr*>(&own), size);
    }
  }
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return address;
}

std::string AddressTowardsOthers() {
  // Addresses for documentation (RFC 5737, RFC 3849), which no machine has.
  for (const char* const nobody : {"192.0.2.1", "2001:db8::1"}) {
    const std::string address = AddressTowards(nobody, 1);
    if (!address.empty()) return address;
  }
  return "";
}

}  // namespace cadre::launcher
