// DeterministicReduction in jobs of real processes: an elastic one that loses a node and gets it
// back ends with the bits of one rank alone.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kWorker[] = "tests/end_to_end/same_bits_worker";
constexpr absl::Duration kTimeout = absl::Minutes(1);

std::string Parameters(const std::string& directory) {
  return ReadFileOrEmpty(directory + "/parameters");
}

TEST(SameBitsTest, AnElasticJobOfFourThreeAndFourNodesHasTheBitsOfOneRank) {
  const std::string alone = MakeTempDir("alone"), elastic = MakeTempDir("elastic");
  auto one = StartStandalone({kWorker, alone, "1x100"});
  ASSERT_EQ(one->Wait(kTimeout), 0) << OutputOf(*one);
  ASSERT_GT(Parameters(alone).size(), 1000u);

  const int port = FreePort();
  const auto start = [&](int node) {
    return StartNode(port, "3:4", node,
                     {"--settle", "30s", "--scale-up", "immediately", "--max-restarts", "2",
                      kWorker, elastic, "4x30", "3x40", "4x30"});
  };
  std::vector<std::unique_ptr<Process>> nodes;
  for (int node = 0; node < 4; ++node) nodes.push_back(start(node));
  for (auto& node : nodes) {
    ASSERT_TRUE(node->WaitForLine("waits for 3 ranks", kTimeout)) << OutputOf(*node);
  }
  const size_t victim = FirstThatDoesNotServe(nodes);
  nodes[victim]->Kill(SIGKILL);
  nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(victim));
  for (auto& node : nodes) {
    ASSERT_TRUE(node->WaitForLine("waits for 4 ranks", kTimeout)) << OutputOf(*node);
  }
  nodes.push_back(start(static_cast<int>(victim)));
  for (auto& node : nodes) ASSERT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
  EXPECT_THAT(nodes[3]->standard_output(), HasSubstr("step 70 on 4 ranks"));
  EXPECT_EQ(Parameters(elastic), Parameters(alone));
}

}  // namespace
}  // namespace cadre
