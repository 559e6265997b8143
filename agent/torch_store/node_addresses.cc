#include "agent/torch_store/node_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

// In front of an IPv4 address that IPv6 carries.
constexpr absl::string_view kMapped("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);

std::string WithoutMapping(std::string bytes) {
  if (bytes.size() == 16 && bytes.compare(0, 12, kMapped.data(), 12) == 0) return bytes.substr(12);
  return bytes;
}

// Empty: a name, or nothing.
std::string BytesOf(const std::string& address) {
  char bytes[16];
  const std::string bare = address.substr(0, address.find('%'));
  if (inet_pton(AF_INET, bare.c_str(), bytes) == 1) return std::string(bytes, 4);
  if (inet_pton(AF_INET6, bare.c_str(), bytes) != 1) return "";
  return WithoutMapping(std::string(bytes, 16));
}

std::string BytesOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return std::string(reinterpret_cast<const char*>(&v4.sin_addr), 4);
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return WithoutMapping(std::string(reinterpret_cast<const char*>(&v6.sin6_addr), 16));
}

bool IsLoopback(const std::string& bytes) {
  return bytes.size() == 4 ? bytes[0] == 127 : bytes == std::string(15, '\0') + '\x01';
}

}  // namespace

absl::StatusOr<NodeAddresses> NodeAddresses::Make(const std::string& own,
                                                  const std::vector<std::string>& nodes) {
  const std::string listens = BytesOf(own);
  if (listens.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("MASTER_ADDR ", Quoted(own), " is no numeric address"));
  }
  NodeAddresses made;
  made.addresses_.insert(listens);
  for (const std::string& node : nodes) {
    std::string bytes = BytesOf(node);
    if (bytes.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("node address ", Quoted(node), " is not numeric"));
    }
    // Such a node did not know its address when it joined.
    if (IsLoopback(bytes) && !IsLoopback(listens)) {
      return absl::FailedPreconditionError(
          absl::StrCat("a node comes from elsewhere than its address ", node));
    }
    made.addresses_.insert(std::move(bytes));
  }
  return made;
}

bool NodeAddresses::Has(const sockaddr_storage& peer) const {
  return addresses_.count(BytesOf(peer)) != 0;
}

std::string AddressText(const sockaddr_storage& address) {
  const std::string bytes = BytesOf(address);
  char text[INET6_ADDRSTRLEN] = "?";
  if (!bytes.empty()) {
    inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
  }
  return text;
}

}  // namespace cadre::agent
