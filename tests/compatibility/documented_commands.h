// The commands that a page of docs/ tells its reader to type.
#ifndef CADRE_TESTS_COMPATIBILITY_DOCUMENTED_COMMANDS_H_
#define CADRE_TESTS_COMPATIBILITY_DOCUMENTED_COMMANDS_H_

#include <string>
#include <vector>

namespace cadre {

// The lines of all its ``` blocks, in order.
std::vector<std::string> DocumentedCommands(const std::string& page);

// A directory with what those commands are about: train.py, which says "trained RANK of
// WORLD_SIZE", job.yaml, which runs it on two nodes by two workers, and the host file of two nodes.
void WriteDocumentedFiles(const std::string& directory);

// PATH with the directory of the program under test in front.
std::string PathWith(const std::string& program);

}  // namespace cadre

#endif  // CADRE_TESTS_COMPATIBILITY_DOCUMENTED_COMMANDS_H_
