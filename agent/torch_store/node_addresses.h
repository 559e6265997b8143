// From where a store takes connections. Pure; any thread.
#ifndef CADRE_AGENT_TORCH_STORE_NODE_ADDRESSES_H_
#define CADRE_AGENT_TORCH_STORE_NODE_ADDRESSES_H_

#include <sys/socket.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre::agent {

class NodeAddresses {
 public:
  // Of the nodes of a generation, as each said that it is reached, for a store that listens at
  // `own`. FAILED_PRECONDITION: from where they will come cannot be told from that, and why.
  static absl::StatusOr<NodeAddresses> Make(const std::string& own,
                                            const std::vector<std::string>& nodes);

  // Whether a socket's other end is one of them.
  bool Has(const sockaddr_storage& peer) const;

 private:
  // The bytes of each, without port and scope.
  std::set<std::string> addresses_;
};

// Numeric; for people.
std::string AddressText(const sockaddr_storage& address);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_NODE_ADDRESSES_H_
