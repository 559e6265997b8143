// A replacement of ssh between the nodes of a NodeNetwork.
#ifndef CADRE_TESTS_TESTING_NODE_SHELL_H_
#define CADRE_TESTS_TESTING_NODE_SHELL_H_

#include <string>

namespace cadre {

// Returns the path of a new program that is used like ssh, `PROGRAM [OPTION...] [USER@]HOST
// COMMAND...`. It runs the command on that node, whose host name is HOST there. Like ssh it exits
// with 255 if there is no such node.
std::string MakeNodeShell();

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_NODE_SHELL_H_
