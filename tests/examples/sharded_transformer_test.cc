// The transformer that is trained in five ways.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/examples/number_after.h"
#include "tests/examples/transformer_runs.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using transformer::kProgram;
using transformer::kSmall;
using transformer::kTraining;
using transformer::LossOf;
using transformer::Start;

TEST(ShardedTransformerTest, AllStrategiesComputeTheSame_AndRanksKeepTheirShare) {
  auto alone = Start(1, "ddp", {"--steps", "6"});
  ASSERT_EQ(alone->Wait(kTraining), 0) << OutputOf(*alone);
  const double loss = LossOf(alone->standard_output(), 6);
  ASSERT_GT(loss, 1) << OutputOf(*alone);
  const double parameters = NumberAfter(alone->standard_output(), "rank 0 keeps ");
  const double state = NumberAfter(alone->standard_output(), " of gradients, ");
  for (const std::string strategy : {"ddp", "oss", "sharded", "fsdp"}) {
    auto run = Start(2, strategy, {"--steps", "6"});
    ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
    const std::string& output = run->standard_output();
    EXPECT_NEAR(LossOf(output, 6), loss, 2e-4) << OutputOf(*run);
    const double part = strategy == "ddp" ? 1 : 0.5;
    EXPECT_NEAR(NumberAfter(output, " of gradients, "), part * state, 0.1 * state)
        << OutputOf(*run);
    EXPECT_NEAR(NumberAfter(output, "rank 0 keeps "), (strategy == "fsdp" ? 0.5 : 1) * parameters,
                0.1 * parameters)
        << OutputOf(*run);
    EXPECT_THAT(output, HasSubstr("6 steps done; the model writes:"));
  }
}

TEST(ShardedTransformerTest, TwoNodesHaveAReplicaEachOfWhatTheirRanksShareOut) {
  auto alone = Start(1, "ddp", {"--steps", "4"});
  ASSERT_EQ(alone->Wait(kTraining), 0) << OutputOf(*alone);
  const double parameters = NumberAfter(alone->standard_output(), "rank 0 keeps ");
  std::vector<std::string> arguments = {"--nproc-per-node", "2",      "--",      kProgram,
                                        "--strategy",       "hybrid", "--steps", "4"};
  arguments.insert(arguments.end(), kSmall.begin(), kSmall.end());
  const int port = FreePort();
  auto first = StartNode(port, "2", 0, arguments);
  auto second = StartNode(port, "2", 1, arguments);
  for (Process* node : {first.get(), second.get()}) {
    ASSERT_EQ(node->Wait(kTraining), 0) << OutputOf(*node);
  }
  EXPECT_NEAR(LossOf(first->standard_output(), 4), LossOf(alone->standard_output(), 4), 2e-4)
      << OutputOf(*first);
  EXPECT_NEAR(NumberAfter(second->standard_output(), "rank 3 keeps "), 0.5 * parameters,
              0.1 * parameters)
      << OutputOf(*second);
}

TEST(ShardedTransformerTest, AKilledTrainingGoesOn_AndAnotherWithAnotherStrategy) {
  auto undisturbed = Start(1, "ddp", {"--steps", "12"});
  ASSERT_EQ(undisturbed->Wait(kTraining), 0) << OutputOf(*undisturbed);
  const std::vector<std::string> saving = {"--checkpoint-dir", MakeTempDir("transformer"),
                                           "--save-every", "2"};
  const auto with = [&saving](const std::vector<std::string>& more) {
    std::vector<std::string> flags = saving;
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  auto killed = Start(3, "fsdp", with({"--steps", "6", "--fail-rank", "1", "--fail-step", "4"}),
                      {"--max-restarts", "1"});
  ASSERT_EQ(killed->Wait(kTraining), 0) << OutputOf(*killed);
  EXPECT_THAT(killed->standard_output(), HasSubstr("goes on after step 2, with 3 ranks and fsdp"));
  int steps = 6;
  for (const std::string strategy : {"oss", "ddp", "sharded"}) {
    auto run = Start(2, strategy, with({"--steps", absl::StrCat(steps + 2)}));
    ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
    EXPECT_THAT(run->standard_output(), HasSubstr(absl::StrCat("goes on after step ", steps)));
    steps += 2;
    EXPECT_NEAR(LossOf(run->standard_output(), steps),
                LossOf(undisturbed->standard_output(), steps), 2e-4)
        << OutputOf(*run);
  }
}

TEST(ShardedTransformerTest, ActivationsThatAreComputedAgainChangeNothing) {
  auto alone = Start(1, "ddp", {"--steps", "4"});
  ASSERT_EQ(alone->Wait(kTraining), 0) << OutputOf(*alone);
  for (const std::string strategy : {"ddp", "oss", "sharded", "fsdp"}) {
    auto run = Start(2, strategy, {"--steps", "4", "--checkpoint-activations"});
    ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
    EXPECT_NEAR(LossOf(run->standard_output(), 4), LossOf(alone->standard_output(), 4), 2e-4)
        << OutputOf(*run);
  }
}

// Near what float32 comes to, and not the same.
TEST(ShardedTransformerTest, InBfloat16WithEachStrategy) {
  // Fast enough that what is rounded shows in the losses' four digits.
  const std::vector<std::string> flags = {"--steps", "6", "--lr", "0.02"};
  auto alone = Start(1, "ddp", flags);
  ASSERT_EQ(alone->Wait(kTraining), 0) << OutputOf(*alone);
  std::vector<std::string> in_16_bits = flags;
  in_16_bits.insert(in_16_bits.end(), {"--precision", "bfloat16", "--checkpoint-activations"});
  for (const std::string strategy : {"ddp", "oss", "sharded", "fsdp"}) {
    auto run = Start(2, strategy, in_16_bits);
    ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
    double largest = 0;
    for (int step = 1; step <= 6; ++step) {
      const double difference =
          LossOf(run->standard_output(), step) - LossOf(alone->standard_output(), step);
      largest = std::max(largest, std::abs(difference));
    }
    EXPECT_GT(largest, 2e-4) << OutputOf(*run);
    EXPECT_LT(largest, 0.02) << OutputOf(*run);
    EXPECT_THAT(run->standard_output(), HasSubstr("6 steps done; the model writes:"));
  }
}

TEST(ShardedTransformerTest, MistakesAreNamed) {
  auto uneven = Start(2, "ddp", {"--batch", "3"}, {}, {});
  EXPECT_EQ(uneven->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*uneven), HasSubstr("--batch 3 cannot be divided among 2 ranks"));
  auto unknown = Start(1, "zero", {});
  EXPECT_EQ(unknown->Wait(kTraining), 64);
  EXPECT_THAT(OutputOf(*unknown),
              HasSubstr("--strategy: zero not in {ddp,oss,sharded,fsdp,hybrid}"));
  auto heads = Start(1, "ddp", {"--width", "16", "--heads", "3"}, {}, {});
  EXPECT_EQ(heads->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*heads), HasSubstr("--width 16 is no multiple of --heads 3"));
}

}  // namespace
}  // namespace cadre
