// Nodes as network namespaces on one bridge, whose links can be taken down. All of it lives in
// namespaces of this process and goes with it. One thread.
#ifndef CADRE_TESTS_TESTING_NODE_NETWORK_H_
#define CADRE_TESTS_TESTING_NODE_NETWORK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cadre {

// This process, on the bridge.
inline constexpr char kBridgeAddress[] = "10.77.0.254";

class NodeNetwork {
 public:
  // Moves this process, which must have one thread, into namespaces of its own and makes the
  // bridge. PERMISSION_DENIED where that takes root, or a root folder that is mounted; a test then
  // is skipped.
  static absl::Status Enter();
  // The same, with nodes 1 to `nodes`.
  static absl::Status EnterWith(int nodes);

  // A node of this number, from 1 to 200, with its link up. Errors name the command that failed.
  static absl::Status Add(int node);
  static absl::Status SetLink(int node, bool up);
  // Here and on all nodes: the first of `names` means node 1 (one may be several, with spaces
  // between them), and so on; this machine's name means the bridge.
  static absl::Status NameNodes(const std::vector<std::string>& names);

  static std::string NameOf(int node);
  static std::string AddressOf(int node);
  // What goes before a command that runs there.
  static std::vector<std::string> Inside(int node);
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_NODE_NETWORK_H_
