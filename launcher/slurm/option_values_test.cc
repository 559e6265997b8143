// Tests the forms of values that Slurm's manual pages describe.
#include "launcher/slurm/option_values.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/spec/queue_values.h"

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

TEST(OptionValuesTest, Warnings) {
  const auto warning = ParseSlurmWarning("USR2@90");
  ASSERT_OK(warning);
  EXPECT_EQ(warning->signal, SIGUSR2);
  EXPECT_EQ(warning->before, absl::Seconds(90));
  EXPECT_FALSE(warning->script);
  EXPECT_EQ(ParseSlurmWarning("10")->before, absl::Seconds(60));
  EXPECT_TRUE(ParseSlurmWarning("B:SIGUSR1@10")->script);
  EXPECT_FALSE(ParseSlurmWarning("R:USR1")->script);
  EXPECT_TRUE(ParseSlurmWarning("RB:USR1")->script);
  for (const char* const wrong : {"", "X:USR1", "USR1@", "USR1@x", "USR1@65536", "@10", "NO"}) {
    EXPECT_THAT(ParseSlurmWarning(wrong), StatusIs(kInvalid)) << wrong;
  }
}

TEST(OptionValuesTest, Arrays) {
  const auto indices = [](absl::string_view text) {
    const auto array = ParseSlurmArray(text);
    return array.ok() ? absl::StrCat(IndicesText(array->indices), "%", array->at_once)
                      : std::string(array.status().message());
  };
  EXPECT_EQ(indices("0-9"), "0-9%0");
  EXPECT_EQ(indices("0-9%3"), "0-9%3");
  EXPECT_EQ(indices("1,3,5-9:2"), "1,3,5,7,9%0");
  EXPECT_EQ(indices("7,3,3-4"), "3-4,7%0");
  EXPECT_EQ(indices("3999999"), "3999999%0");
  EXPECT_EQ(indices("0-999"), "0-999%0");
  EXPECT_THAT(indices("0-1000"), HasSubstr("at most 1000 elements"));
  EXPECT_THAT(indices("4000000"), HasSubstr("an index is at most 3999999, got 4000000"));
  EXPECT_THAT(indices("0-99999999999"), HasSubstr("an index is at most 3999999"));
  for (const char* const wrong : {"", "x", "1-", "-1", "5-1", "1:2", "1-5:0", "1,,2", "1-3-5"}) {
    EXPECT_THAT(indices(wrong), HasSubstr("expected indices, as 0-9")) << wrong;
  }
  EXPECT_THAT(indices("0-9%0"), HasSubstr("a number of elements from 1 after '%'"));
}

TEST(OptionValuesTest, Constraints) {
  EXPECT_THAT(*ParseSlurmConstraint("a100"), ElementsAre("a100"));
  EXPECT_THAT(*ParseSlurmConstraint("a&rack=7"), ElementsAre("a", "rack=7"));
  EXPECT_THAT(*ParseSlurmConstraint("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(*ParseSlurmConstraint("a|b"), ElementsAre("a|b"));
  EXPECT_THAT(*ParseSlurmConstraint("a|b&c"), ElementsAre("a|b", "c"));
  EXPECT_THAT(*ParseSlurmConstraint("a&b|c"), ElementsAre("a|c", "b|c"));
  for (const char* const wrong : {"[a|b]", "a*2", "(a|b)&c"}) {
    EXPECT_THAT(ParseSlurmConstraint(wrong),
                StatusIs(kInvalid, HasSubstr("brackets and numbers of nodes are not possible")))
        << wrong;
  }
  for (const char* const wrong : {"", "a&", "&a", "a b"}) {
    EXPECT_THAT(ParseSlurmConstraint(wrong), StatusIs(kInvalid, HasSubstr("expected labels")))
        << wrong;
  }
}

TEST(OptionValuesTest, Hosts) {
  EXPECT_THAT(*ParseSlurmHosts("n[1-2],m7,n1"), ElementsAre("n1", "n2", "m7"));
  for (const char* const wrong : {"", "n[1-", "-n"}) {
    EXPECT_THAT(ParseSlurmHosts(wrong), StatusIs(kInvalid)) << wrong;
  }
}

TEST(OptionValuesTest, QuotedLists) {
  EXPECT_THAT(SplitQuoted("A,B=1"), ElementsAre("A", "B=1"));
  EXPECT_THAT(SplitQuoted("A='x,y',B=\"it's\""), ElementsAre("A=x,y", "B=it's"));
}

}  // namespace
}  // namespace cadre::launcher
