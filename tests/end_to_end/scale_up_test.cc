// A node that comes while an elastic job runs gets in at the next checkpoint.
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(1);

// Begins with one node; the other comes once the first one has said `ready`. Both end well, without
// a restart that counts.
void Grow(const std::vector<std::string>& arguments, const std::string& ready,
          const std::string& grown) {
  std::vector<std::string> all = {"--settle", "0s"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const int port = FreePort();
  const auto first = StartNode(port, "1:2", 0, all);
  ASSERT_TRUE(first->WaitForLine(ready, kTimeout)) << OutputOf(*first);
  const auto second = StartNode(port, "1:2", 1, all);
  EXPECT_EQ(first->Wait(kTimeout), 0) << OutputOf(*first);
  EXPECT_EQ(second->Wait(kTimeout), 0) << OutputOf(*second);
  EXPECT_THAT(first->standard_output(), HasSubstr(grown));
  EXPECT_THAT(first->standard_error(), HasSubstr("more nodes wait"));
}

TEST(ScaleUpTest, AFileTellsAnyProgramToSave) {
  Grow({"--", "sh", "-c",
        "echo generation $CADRE_GENERATION of $WORLD_SIZE; [ $WORLD_SIZE = 2 ] && exit 0;"
        "while [ ! -e \"$CADRE_CHECKPOINT_FILE\" ]; do sleep 0.02; done; exit 94"},
       "generation 1 of 1", "generation 2 of 2");
}

TEST(ScaleUpTest, OrASignalDoes) {
  Grow({"--checkpoint-signal", "USR1", "--", "sh", "-c",
        "trap 'exit 94' USR1; echo generation $CADRE_GENERATION of $WORLD_SIZE;"
        "[ $WORLD_SIZE = 2 ] && exit 0; while :; do sleep 0.02; done"},
       "generation 1 of 1", "generation 2 of 2");
}

TEST(ScaleUpTest, ATrainingGoesOnFromTheCheckpointItWasAskedFor) {
  const std::string directory = MakeTempDir("checkpoints");
  Grow({"--", "examples/mnist_cnn/mnist_cnn", "--limit", "512", "--epochs", "20",
        "--checkpoint-dir", directory},
       "epoch 1/20: ", "parameters equal on 2 ranks");
}

}  // namespace
}  // namespace cadre
