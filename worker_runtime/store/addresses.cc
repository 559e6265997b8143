#include "worker_runtime/store/addresses.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker_runtime/sockets/endpoint.h"

namespace cadre::store {

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
  // Only an address of its own can be listened at.
  return IsLoopback(address) || sockets::Listen(address).ok();
}

std::string EndpointAt(absl::string_view address, uint16_t port) {
  return absl::StrContains(address, ':') ? absl::StrCat("[", address, "]:", port)
                                         : absl::StrCat(address, ":", port);
}

}  // namespace cadre::store
