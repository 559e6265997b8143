// The commands that a page of docs/ tells its reader to type.
#ifndef CADRE_TESTS_COMPATIBILITY_DOCUMENTED_COMMANDS_H_
#define CADRE_TESTS_COMPATIBILITY_DOCUMENTED_COMMANDS_H_

#include <string>
#include <vector>

namespace cadre {

// The lines of all its ``` blocks that name no language, in order, without their comments.
std::vector<std::string> DocumentedCommands(const std::string& page);

// Its first ```yaml block.
std::string DocumentedYaml(const std::string& page);

// The commands that begin with `cadre` in the cells of its tables.
std::vector<std::string> CommandsInTables(const std::string& page);

// A directory with what those commands are about: train.py, which says "trained RANK of
// WORLD_SIZE", job.yaml, which runs it on two nodes by two workers, and the host file of two nodes.
void WriteDocumentedFiles(const std::string& directory);

// PATH with the directory of the program under test in front.
std::string PathWith(const std::string& program);

}  // namespace cadre

#endif  // CADRE_TESTS_COMPATIBILITY_DOCUMENTED_COMMANDS_H_
