#include "tests/testing/documented_commands.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {

std::vector<std::string> DocumentedCommands(const std::string& page) {
  std::vector<std::string> commands;
  bool inside = false, typed = false;
  for (const absl::string_view line : absl::StrSplit(ReadFileOrEmpty(page), '\n')) {
    if (line.substr(0, 3) == "```") {
      inside = !inside;
      typed = inside && line.size() == 3;
    } else if (typed && !line.empty()) {
      commands.emplace_back(absl::StripTrailingAsciiWhitespace(line.substr(0, line.find("  #"))));
    }
  }
  EXPECT_FALSE(commands.empty()) << page;
  return commands;
}

std::string DocumentedYaml(const std::string& page) {
  constexpr absl::string_view kBegin = "\n```yaml\n", kEnd = "\n```\n";
  const std::string text = ReadFileOrEmpty(page);
  const size_t begin = text.find(kBegin.data());
  const size_t end = text.find(kEnd.data(), begin);
  EXPECT_NE(end, std::string::npos) << page;
  return end == std::string::npos ? ""
                                  : text.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

std::vector<std::string> CommandsInTables(const std::string& page) {
  std::vector<std::string> commands;
  for (const absl::string_view line : absl::StrSplit(ReadFileOrEmpty(page), '\n')) {
    if (line.substr(0, 1) != "|") continue;
    for (const absl::string_view code : absl::StrSplit(line, '`')) {
      if (code.substr(0, 6) == "cadre ") commands.emplace_back(code);
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
