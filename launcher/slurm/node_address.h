// Under which address Slurm reaches a node whose name does not resolve: nodes of a cloud, and those
// that slurm.conf gives a NodeAddr.
#ifndef CADRE_LAUNCHER_SLURM_NODE_ADDRESS_H_
#define CADRE_LAUNCHER_SLURM_NODE_ADDRESS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace cadre::launcher {

// Of SLURM_NODE_ALIASES, "ec0:10.0.0.1:host0,ec1:[fd00::1]:host1". Empty: the node is not in it.
// Pure.
std::string AddressInAliases(absl::string_view aliases, absl::string_view node);

// Of what `scontrol show node NODE` prints. Empty: it says none but the node's name. Pure.
std::string AddressInShownNode(absl::string_view text, absl::string_view node);

// From the aliases or else from scontrol on PATH, which is asked and waited for. Empty: neither
// knows. Thread safe.
std::string SlurmNodeAddress(absl::string_view aliases, const std::string& node);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_NODE_ADDRESS_H_
