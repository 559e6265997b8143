// Tests the forms of values that Slurm's manual pages describe.
#include "launcher/slurm/option_values.h"

#include <signal.h>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(OptionValuesTest, Counts) {
  EXPECT_EQ(*ParseSlurmCount("12", 1), 12u);
  EXPECT_EQ(*ParseSlurmCount("2k", 1), 2048u);
  for (const char* const wrong : {"", "0", "-1", "x", "1x", "99999999999", "4194304k"}) {
    EXPECT_THAT(ParseSlurmCount(wrong, 1), StatusIs(kInvalid, HasSubstr("a number from 1")))
        << wrong;
  }
}

TEST(OptionValuesTest, Nodes) {
  EXPECT_THAT(*ParseSlurmNodes("2"), Pair(2, 2));
  EXPECT_THAT(*ParseSlurmNodes("2-4"), Pair(2, 4));
  for (const char* const wrong : {"", "4-2", "0", "2-", "-2", "2-x"}) {
    EXPECT_THAT(ParseSlurmNodes(wrong), StatusIs(kInvalid)) << wrong;
  }
}

TEST(OptionValuesTest, Times) {
  EXPECT_EQ(*ParseSlurmTime("30"), absl::Minutes(30));
  EXPECT_EQ(*ParseSlurmTime("30:15"), absl::Minutes(30) + absl::Seconds(15));
  EXPECT_EQ(*ParseSlurmTime("1:30:00"), absl::Minutes(90));
  EXPECT_EQ(*ParseSlurmTime("2-12"), absl::Hours(60));
  EXPECT_EQ(*ParseSlurmTime("2-12:30"), absl::Hours(60) + absl::Minutes(30));
  EXPECT_EQ(*ParseSlurmTime("0-0:0:5"), absl::Seconds(5));
  EXPECT_EQ(*ParseSlurmTime("0"), absl::InfiniteDuration());
  EXPECT_EQ(*ParseSlurmTime("unlimited"), absl::InfiniteDuration());
  for (const char* const wrong : {"", "1h", "1:2:3:4", "1-", "-5", "1-2:3:4:5", "::"}) {
    EXPECT_THAT(ParseSlurmTime(wrong), StatusIs(kInvalid, HasSubstr("expected a time"))) << wrong;
  }
}

TEST(OptionValuesTest, Memory) {
  EXPECT_EQ(*ParseSlurmMemory("4096"), uint64_t{4} << 30);
  EXPECT_EQ(*ParseSlurmMemory("4G"), uint64_t{4} << 30);
  EXPECT_EQ(*ParseSlurmMemory("4gb"), uint64_t{4} << 30);
  EXPECT_EQ(*ParseSlurmMemory("512K"), uint64_t{512} << 10);
  EXPECT_EQ(*ParseSlurmMemory("2T"), uint64_t{2} << 40);
  EXPECT_EQ(*ParseSlurmMemory("0"), 0u);
  for (const char* const wrong : {"", "G", "4X", "-1", "4 G", "99999999999999999999", "9999999P"}) {
    EXPECT_THAT(ParseSlurmMemory(wrong), StatusIs(kInvalid)) << wrong;
  }
}

TEST(OptionValuesTest, Gpus) {
  EXPECT_EQ(*ParseSlurmGpus("2"), 2u);
  EXPECT_EQ(*ParseSlurmGpus("a100:2"), 2u);
  EXPECT_EQ(*ParseSlurmGpus("a100:2,v100:1"), 3u);
  for (const char* const wrong : {"", "a100", "a100:", ":2", "-1"}) {
    EXPECT_THAT(ParseSlurmGpus(wrong), StatusIs(kInvalid)) << wrong;
  }
  EXPECT_EQ(*ParseSlurmGres("gpu"), 1u);
  EXPECT_EQ(*ParseSlurmGres("gpu:4"), 4u);
  EXPECT_EQ(*ParseSlurmGres("gpu:a100"), 1u);
  EXPECT_EQ(*ParseSlurmGres("gpu:a100:4,gpu:1"), 5u);
  EXPECT_EQ(*ParseSlurmGres("gres/gpu:4"), 4u);
  EXPECT_EQ(*ParseSlurmGres("none"), 0u);
  for (const char* const wrong : {"", "fpga:1", "gpus:1", "gpu:1,lustre:2", "gpu:a100:x"}) {
    EXPECT_THAT(ParseSlurmGres(wrong), StatusIs(kInvalid)) << wrong;
  }
}

TEST(OptionValuesTest, Signals) {
  EXPECT_EQ(*ParseSlurmSignal("TERM"), SIGTERM);
  EXPECT_EQ(*ParseSlurmSignal("sigusr1"), SIGUSR1);
  EXPECT_EQ(*ParseSlurmSignal("9"), SIGKILL);
  for (const char* const wrong : {"", "0", "SIG", "999", "NO"}) {
    EXPECT_THAT(ParseSlurmSignal(wrong), StatusIs(kInvalid)) << wrong;
  }
}

TEST(OptionValuesTest, QuotedLists) {
  EXPECT_THAT(SplitQuoted("A,B=1"), ElementsAre("A", "B=1"));
  EXPECT_THAT(SplitQuoted("A='x,y',B=\"it's\""), ElementsAre("A=x,y", "B=it's"));
}

}  // namespace
}  // namespace cadre::launcher
