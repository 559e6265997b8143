#include "launcher/spec/scalars.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

TEST(ScalarsTest, Durations) {
  EXPECT_EQ(*ParseDuration("90s"), absl::Seconds(90));
  EXPECT_EQ(*ParseDuration("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*ParseDuration("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDuration("0s"), absl::ZeroDuration());
  for (const char* bad :
       {"", "90", "s", "1x", "-1s", "1.5s", "1s1s", "30m1h", "1s ", "9999999999s"}) {
    EXPECT_THAT(ParseDuration(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("duration such as 90s")))
        << bad;
  }
}

TEST(ScalarsTest, DurationRanges) {
  EXPECT_EQ(ParseDurationRange("1s..1m")->second, absl::Minutes(1));
  EXPECT_EQ(ParseDurationRange("2s")->first, absl::Seconds(2));
  EXPECT_FALSE(ParseDurationRange("1m..1s").ok());
  EXPECT_FALSE(ParseDurationRange("1s..").ok());
}

TEST(ScalarsTest, Counts) {
  EXPECT_EQ(*ParseCount("4294967295"), 4294967295u);
  EXPECT_THAT(ParseCount("99999999999"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("from 0 to 4294967295")));
  for (const char* bad : {"", "-1", "1e3", " 1"}) EXPECT_FALSE(ParseCount(bad).ok()) << bad;
}

TEST(ScalarsTest, ExitCodes) {
  EXPECT_EQ(*ParseExitCode("1"), 1u);
  EXPECT_EQ(*ParseExitCode("255"), 255u);
  for (const char* bad : {"", "0", "256", "300", "x"}) {
    EXPECT_THAT(ParseExitCode(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("exit code from 1 to 255")))
        << bad;
  }
}

TEST(ScalarsTest, ModuleNames) {
  EXPECT_EQ(*ParseModuleName("torch.nn"), "torch.nn");
  EXPECT_EQ(*ParseModuleName("_a1"), "_a1");
  for (const char* bad : {"", "a b", "1a", ".a", "a.", "a..b", "a-b", "a/b"}) {
    EXPECT_FALSE(ParseModuleName(bad).ok()) << bad;
  }
}

TEST(ScalarsTest, Sizes) {
  EXPECT_EQ(*ParseSize("512MiB"), 512u << 20);
  EXPECT_EQ(*ParseSize("8GiB"), uint64_t{8} << 30);
  for (const char* bad : {"", "512", "512MB", "-1MiB", "99999999999999TiB", "MiB"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
}

TEST(ScalarsTest, NodeRanges) {
  EXPECT_EQ(ParseNodeRange("2..4")->max(), 4u);
  EXPECT_EQ(ParseNodeRange("2:4")->min(), 2u);
  EXPECT_EQ(ParseNodeRange("3")->min(), 3u);
  for (const char* bad : {"", "0", "4..2", "2..", "a", "-1", "1:2:3", "1e3"}) {
    EXPECT_FALSE(ParseNodeRange(bad).ok()) << bad;
  }
}

TEST(ScalarsTest, WorkersPerNode) {
  EXPECT_EQ(ParseWorkersPerNode("gpu")->kind(), v1::WorkersPerNode::GPU);
  EXPECT_EQ(ParseWorkersPerNode("4")->count(), 4u);
  EXPECT_FALSE(ParseWorkersPerNode("0").ok());
  EXPECT_FALSE(ParseWorkersPerNode("xpu").ok());
  EXPECT_EQ(ParseWorkersPerNode("4096")->count(), 4096u);
  EXPECT_FALSE(ParseWorkersPerNode("4097").ok());
}

TEST(ScalarsTest, JobNames) {
  EXPECT_OK(CheckJobName("mnist-2"));
  EXPECT_OK(CheckJobName(std::string(63, 'a')));
  for (const std::string& bad : {std::string(), std::string("-a"), std::string("A"),
                                 std::string("a_b"), std::string("a/b"), std::string(64, 'a')}) {
    EXPECT_FALSE(CheckJobName(bad).ok()) << bad;
  }
}

// sbatch splits its lines as a shell does: text that it would interpret is refused.
TEST(ScalarsTest, WhatMayStandInASbatchLine) {
  EXPECT_EQ(*ParseSlurmName("gpu-a100,cpu_2"), "gpu-a100,cpu_2");
  for (const std::string& bad :
       {std::string("my project"), std::string("it's"), std::string("x # y"),
        std::string("p\nrm -rf /"), std::string("a\0b", 3)}) {
    EXPECT_FALSE(ParseSlurmName(bad).ok()) << bad;
  }
  EXPECT_EQ(*ParseSbatchOption("--comment='two words'"), "--comment='two words'");
  for (const std::string& bad :
       {std::string("touch /tmp/x"), std::string("--comment=a\n#SBATCH -N9"), std::string(),
        std::string("-a\0b", 4)}) {
    EXPECT_FALSE(ParseSbatchOption(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace cadre::launcher
