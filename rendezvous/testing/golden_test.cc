// Plays the scenarios in golden/ and compares. After an intended change their expectations are
// rewritten by
//   bazel run //rendezvous/testing:golden_test -- --rewrite
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "rendezvous/testing/script.h"

namespace cadre {
namespace {

constexpr char kFolder[] = "rendezvous/testing/golden";

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::set<std::filesystem::path> Stories(const std::filesystem::path& folder) {
  std::set<std::filesystem::path> stories;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") stories.insert(entry.path());
  }
  return stories;
}

TEST(GoldenTest, EveryStoryGoesAsItIsTold) {
  const std::set<std::filesystem::path> stories = Stories(kFolder);
  EXPECT_GE(stories.size(), 12u);
  for (const std::filesystem::path& path : stories) {
    const std::string expected = Read(path);
    const absl::StatusOr<std::string> played = PlayScript(expected);
    ASSERT_TRUE(played.ok()) << path << ": " << played.status();
    EXPECT_EQ(expected, *played) << path;
  }
}

TEST(GoldenTest, ALineThatCannotBeReadIsNamed) {
  EXPECT_EQ(PlayScript("> spec nodes=2\n> jion a\n").status().message(),
            "line 2: unknown event: jion");
  EXPECT_EQ(PlayScript("> join a sluts=2\n").status().message(),
            "line 1: nothing to do with: sluts");
}

int Rewrite() {
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (workspace == nullptr) {
    std::cerr << "--rewrite changes the source tree; start it with bazel run\n";
    return 64;
  }
  for (const auto& path : Stories(std::filesystem::path(workspace) / kFolder)) {
    const absl::StatusOr<std::string> played = PlayScript(Read(path));
    if (!played.ok()) {
      std::cerr << path << ": " << played.status() << "\n";
      return 65;
    }
    std::ofstream(path) << *played;
  }
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (absl::string_view(argv[i]) == "--rewrite") return cadre::Rewrite();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
