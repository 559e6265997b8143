#include "tests/compatibility/documented_commands.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {

std::vector<std::string> DocumentedCommands(const std::string& page) {
  std::vector<std::string> commands;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(ReadFileOrEmpty(page), '\n')) {
    if (line.substr(0, 3) == "```") {
      inside = !inside;
    } else if (inside && !line.empty()) {
      commands.emplace_back(line);
    }
  }
  EXPECT_FALSE(commands.empty()) << page;
  return commands;
}

void WriteDocumentedFiles(const std::string& directory) {
  std::ofstream(directory + "/train.py")
      << "import os\n"
         "print('trained', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n";
  std::ofstream(directory + "/job.yaml") << "name: documented\n"
                                            "command: [python3, train.py]\n"
                                            "nodes: 2\n"
                                            "workers_per_node: 2\n";
  std::ofstream(directory + "/hosts") << "node1 slots=2\nnode2 slots=2\n";
}

std::string PathWith(const std::string& program) {
  const std::filesystem::path real = std::filesystem::canonical(program);
  return absl::StrCat(real.parent_path().string(), ":/usr/bin:/bin:/usr/sbin:/sbin");
}

}  // namespace cadre
