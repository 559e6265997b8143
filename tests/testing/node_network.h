// Nodes as network namespaces on one bridge, whose links can be taken down. Everything lives in
// namespaces of this process and disappears with it. One thread.
#ifndef CADRE_TESTS_TESTING_NODE_NETWORK_H_
#define CADRE_TESTS_TESTING_NODE_NETWORK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cadre {

// The address of this process on the bridge.
inline constexpr char kBridgeAddress[] = "10.77.0.254";

class NodeNetwork {
 public:
  // Moves this process, which must have one thread, into its own namespaces and creates the bridge.
  // Fails with PERMISSION_DENIED without root, or if / is not a mount point (in a chroot); the test
  // is then skipped.
  static absl::Status Enter();
  // Calls Enter() and adds nodes 1 to `nodes`.
  static absl::Status EnterWith(int nodes);

  // Adds the node of this number, from 1 to 200, with its link up. Errors name the failed command.
  static absl::Status Add(int node);
  static absl::Status SetLink(int node, bool up);
  // Names the nodes here and on all nodes: names[0] is node 1 (an entry may hold several names,
  // separated by spaces), and so on; this machine's own name resolves to the bridge.
  static absl::Status NameNodes(const std::vector<std::string>& names);

  static std::string NameOf(int node);
  static std::string AddressOf(int node);
  // Returns the command prefix that runs a command on that node.
  static std::vector<std::string> Inside(int node);
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_NODE_NETWORK_H_
