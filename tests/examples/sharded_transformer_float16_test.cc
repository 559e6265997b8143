// The transformer in float16, which a libtorch that is too old refuses.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/examples/number_after.h"
#include "tests/examples/transformer_runs.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using transformer::kTraining;
using transformer::LossOf;
using transformer::Start;

// A training that each strategy in turn goes on with, whose scale is much too large at first.
TEST(ShardedTransformerFloat16Test, TheScaleFallsAndIsSaved) {
  const std::vector<std::string> flags = {"--precision",      "float16",
                                          "--checkpoint-dir", MakeTempDir("transformer"),
                                          "--save-every",     "2"};
  const auto run = [&flags](const std::string& strategy, int steps,
                            std::vector<std::string> more = {}) {
    more.insert(more.end(), flags.begin(), flags.end());
    more.insert(more.end(), {"--steps", absl::StrCat(steps)});
    return Start(2, strategy, more);
  };
  const std::string said = "the loss is scaled by ";
  auto first = run("fsdp", 4, {"--loss-scale", "1073741824"});
  if (first->Wait(kTraining) != 0) {
    EXPECT_THAT(OutputOf(*first),
                ContainsRegex("--precision float16: libtorch 1\\.[0-9.]+ cannot train"));
    GTEST_SKIP() << "the libtorch is too old";
  }
  int steps = 4;
  double scale = 1073741824.0 / 16;
  EXPECT_THAT(first->standard_output(),
              HasSubstr(absl::StrCat("step 4 is left out: a gradient overflowed; ", said)));
  EXPECT_EQ(NumberAfter(first->standard_output(), said), scale) << OutputOf(*first);
  for (const std::string strategy : {"ddp", "oss", "sharded"}) {
    steps += 2;
    auto next = run(strategy, steps);
    ASSERT_EQ(next->Wait(kTraining), 0) << OutputOf(*next);
    EXPECT_THAT(next->standard_output(), HasSubstr(absl::StrCat("goes on after step ", steps - 2)));
    EXPECT_THAT(next->standard_output(), HasSubstr(absl::StrFormat("%s%.0f\n", said, scale)));
    scale = NumberAfter(next->standard_output(), said);
  }
  // By now it is one that gradients are finite with.
  auto last = run("fsdp", steps + 10);
  ASSERT_EQ(last->Wait(kTraining), 0) << OutputOf(*last);
  const std::string& output = last->standard_output();
  EXPECT_THAT(output, HasSubstr(absl::StrFormat("%s%.0f\n", said, scale)));
  EXPECT_GT(NumberAfter(output, " of gradients, "), 0) << output;
  EXPECT_LT(LossOf(output, steps + 10), LossOf(first->standard_output(), 1) - 0.1) << output;
}

}  // namespace
}  // namespace cadre
