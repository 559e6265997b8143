// The commands that a page of docs/ tells its reader to type.
#ifndef CADRE_TESTS_TESTING_DOCUMENTED_COMMANDS_H_
#define CADRE_TESTS_TESTING_DOCUMENTED_COMMANDS_H_

#include <string>
#include <vector>

namespace cadre {

// Returns the lines of all ``` blocks of the page that name no language, in order and without their
// comments.
std::vector<std::string> DocumentedCommands(const std::string& page);

// Returns the first ```yaml block of the page.
std::string DocumentedYaml(const std::string& page);

// Returns the commands that begin with `cadre` in the cells of the page's tables.
std::vector<std::string> CommandsInTables(const std::string& page);

// Makes a directory with the files that those commands name: train.py, which prints "trained RANK
// of WORLD_SIZE", job.yaml, which runs it on two nodes with two workers each, and a host file of
// two nodes.
void WriteDocumentedFiles(const std::string& directory);

// Returns PATH with the directory of the program under test in front.
std::string PathWith(const std::string& program);

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_DOCUMENTED_COMMANDS_H_
