// The transformer that is trained in four ways.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/launch.h"

namespace cadre {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTraining = absl::Minutes(2);
// As small as it is worth anything.
const std::vector<std::string> kSmall = {"--layers", "2",  "--width",     "16", "--context", "16",
                                         "--batch",  "12", "--log-every", "1",  "--write",   "8"};

std::unique_ptr<Process> Start(int ranks, const std::string& strategy,
                               const std::vector<std::string>& flags,
                               const std::vector<std::string>& launcher_flags = {},
                               const std::vector<std::string>& size = kSmall) {
  std::vector<std::string> arguments = {"--nproc-per-node", absl::StrCat(ranks)};
  arguments.insert(arguments.end(), launcher_flags.begin(), launcher_flags.end());
  arguments.insert(arguments.end(), {"--", "examples/sharded_transformer/sharded_transformer",
                                     "--strategy", strategy});
  arguments.insert(arguments.end(), size.begin(), size.end());
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return StartStandalone(arguments);
}

// The number behind `before`; -1: it is not said.
double NumberAfter(const std::string& output, const std::string& before) {
  const size_t at = output.rfind(before);
  return at == std::string::npos ? -1 : std::atof(output.c_str() + at + before.size());
}

double LossOf(const std::string& output, int step) {
  return NumberAfter(output, absl::StrCat("step ", step, ": loss "));
}

TEST(ShardedTransformerTest, AllStrategiesComputeTheSame_AndRanksKeepTheirShare) {
  auto alone = Start(1, "ddp", {"--steps", "6"});
  ASSERT_EQ(alone->Wait(kTraining), 0) << Said(*alone);
  const double loss = LossOf(alone->standard_output(), 6);
  ASSERT_GT(loss, 1) << Said(*alone);
  const double parameters = NumberAfter(alone->standard_output(), "rank 0 keeps ");
  const double state = NumberAfter(alone->standard_output(), " of gradients, ");
  for (const std::string strategy : {"ddp", "oss", "sharded", "fsdp"}) {
    auto run = Start(2, strategy, {"--steps", "6"});
    ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);
    const std::string& output = run->standard_output();
    EXPECT_NEAR(LossOf(output, 6), loss, 2e-4) << Said(*run);
    const double part = strategy == "ddp" ? 1 : 0.5;
    EXPECT_NEAR(NumberAfter(output, " of gradients, "), part * state, 0.1 * state) << Said(*run);
    EXPECT_NEAR(NumberAfter(output, "rank 0 keeps "), (strategy == "fsdp" ? 0.5 : 1) * parameters,
                0.1 * parameters)
        << Said(*run);
    EXPECT_THAT(output, HasSubstr("6 steps done; it writes:"));
  }
}

TEST(ShardedTransformerTest, AKilledTrainingGoesOn_AndAnotherWithAnotherStrategy) {
  auto undisturbed = Start(1, "ddp", {"--steps", "12"});
  ASSERT_EQ(undisturbed->Wait(kTraining), 0) << Said(*undisturbed);
  const std::vector<std::string> saving = {"--checkpoint-dir", MakeTempDir("transformer"),
                                           "--save-every", "2"};
  const auto with = [&saving](const std::vector<std::string>& more) {
    std::vector<std::string> flags = saving;
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  auto killed = Start(3, "fsdp", with({"--steps", "6", "--fail-rank", "1", "--fail-step", "4"}),
                      {"--max-restarts", "1"});
  ASSERT_EQ(killed->Wait(kTraining), 0) << Said(*killed);
  EXPECT_THAT(killed->standard_output(), HasSubstr("goes on after step 2, with 3 ranks and fsdp"));
  int steps = 6;
  for (const std::string strategy : {"oss", "ddp", "sharded"}) {
    auto run = Start(2, strategy, with({"--steps", absl::StrCat(steps + 2)}));
    ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);
    EXPECT_THAT(run->standard_output(), HasSubstr(absl::StrCat("goes on after step ", steps)));
    steps += 2;
    EXPECT_NEAR(LossOf(run->standard_output(), steps),
                LossOf(undisturbed->standard_output(), steps), 2e-4)
        << Said(*run);
  }
}

TEST(ShardedTransformerTest, ActivationsThatAreComputedAgainChangeNothing) {
  auto alone = Start(1, "ddp", {"--steps", "4"});
  ASSERT_EQ(alone->Wait(kTraining), 0) << Said(*alone);
  for (const std::string strategy : {"ddp", "oss", "sharded", "fsdp"}) {
    auto run = Start(2, strategy, {"--steps", "4", "--checkpoint-activations"});
    ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);
    EXPECT_NEAR(LossOf(run->standard_output(), 4), LossOf(alone->standard_output(), 4), 2e-4)
        << Said(*run);
  }
}

// Near what float32 comes to, and not the same.
TEST(ShardedTransformerTest, InBfloat16WithEachStrategy) {
  auto alone = Start(1, "ddp", {"--steps", "6"});
  ASSERT_EQ(alone->Wait(kTraining), 0) << Said(*alone);
  const double loss = LossOf(alone->standard_output(), 6);
  for (const std::string strategy : {"ddp", "oss", "sharded", "fsdp"}) {
    auto run =
        Start(2, strategy, {"--steps", "6", "--precision", "bfloat16", "--checkpoint-activations"});
    ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);
    EXPECT_NEAR(LossOf(run->standard_output(), 6), loss, 0.02) << Said(*run);
    EXPECT_NE(LossOf(run->standard_output(), 6), loss);
    EXPECT_THAT(run->standard_output(), HasSubstr("6 steps done; it writes:"));
  }
}

// Of a scale that is too large, in a training that each strategy in turn goes on with.
TEST(ShardedTransformerTest, InFloat16TheScaleFallsAndIsSaved) {
  const std::vector<std::string> flags = {"--precision",      "float16",
                                          "--checkpoint-dir", MakeTempDir("transformer"),
                                          "--save-every",     "2"};
  const auto with = [&flags](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  // 2^30 is more than gradients in float16 have room for.
  auto first = Start(2, "fsdp", with({"--steps", "10", "--loss-scale", "1073741824"}));
  if (first->Wait(kTraining) != 0) {
    EXPECT_THAT(Said(*first),
                ContainsRegex("--precision float16: libtorch 1\\.[0-9.]+ cannot train"));
    GTEST_SKIP() << "the libtorch is too old";
  }
  const std::string said_first = first->standard_output();
  EXPECT_THAT(said_first, HasSubstr("step 1 is left out: a gradient overflowed; the loss is scaled "
                                    "by 536870912 now\n"));
  const double scale = NumberAfter(said_first, "the loss is scaled by ");
  EXPECT_LT(scale, 536870912) << said_first;
  EXPECT_GT(NumberAfter(said_first, " of gradients, "), 0) << said_first;
  int steps = 10;
  for (const std::string strategy : {"ddp", "oss", "sharded", "fsdp"}) {
    auto run = Start(2, strategy, with({"--steps", absl::StrCat(steps + 2)}));
    ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);
    const std::string& output = run->standard_output();
    EXPECT_THAT(output, HasSubstr(absl::StrCat("goes on after step ", steps)));
    EXPECT_EQ(NumberAfter(output, "the loss is scaled by "), scale) << output;
    EXPECT_THAT(output, Not(HasSubstr("is left out")));
    steps += 2;
    EXPECT_LT(LossOf(output, steps), LossOf(said_first, 1)) << output;
  }
}

TEST(ShardedTransformerTest, MistakesAreNamed) {
  auto uneven = Start(2, "ddp", {"--batch", "3"}, {}, {});
  EXPECT_EQ(uneven->Wait(kTraining), 1);
  EXPECT_THAT(Said(*uneven), HasSubstr("--batch 3 cannot be divided among 2 ranks"));
  auto unknown = Start(1, "zero", {});
  EXPECT_EQ(unknown->Wait(kTraining), 64);
  EXPECT_THAT(Said(*unknown), HasSubstr("--strategy: zero not in {ddp,oss,sharded,fsdp}"));
  auto heads = Start(1, "ddp", {"--width", "16", "--heads", "3"}, {}, {});
  EXPECT_EQ(heads->Wait(kTraining), 1);
  EXPECT_THAT(Said(*heads), HasSubstr("--width 16 is no multiple of --heads 3"));
}

}  // namespace
}  // namespace cadre
