// What stands in for ssh between the nodes of a NodeNetwork.
#ifndef CADRE_TESTS_COMPATIBILITY_NODE_SHELL_H_
#define CADRE_TESTS_COMPATIBILITY_NODE_SHELL_H_

#include <string>

namespace cadre {

// Path of a new program that is used like ssh, `PROGRAM [OPTION...] [USER@]HOST COMMAND...`, and
// runs the command on that node, which there has the host's name. 255, as ssh: there is no such
// node.
std::string MakeNodeShell();

}  // namespace cadre

#endif  // CADRE_TESTS_COMPATIBILITY_NODE_SHELL_H_
