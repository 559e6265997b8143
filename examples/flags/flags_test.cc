#include "flags.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::flags {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  std::optional<int> status;
  std::string error;
};

Outcome ParseArguments(std::vector<std::string> arguments) {
  CLI::App app("A program.");
  int batch = 1;
  double rate = 0;
  app.add_option("-b,--batch-size", batch)->check(Positive());
  app.add_option("--lr", rate)->check(NotNegative());
  arguments.insert(arguments.begin(), "/bin/example");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  const auto status = Parse(app, static_cast<int>(pointers.size()), pointers.data());
  testing::internal::GetCapturedStdout();
  return {status, testing::internal::GetCapturedStderr()};
}

TEST(FlagsTest, WhatIsRightGoesOn) {
  EXPECT_EQ(ParseArguments({"-b", "3", "--lr", "0"}).status, std::nullopt);
  EXPECT_EQ(ParseArguments({"--lr", "1e-4"}).status, std::nullopt);
}

TEST(FlagsTest, AnErrorIsOneLineThatSaysWhatWasExpected) {
  for (const char* const wrong : {"0", "-1", "abc", "3x", "", "nan", "1e999"}) {
    const Outcome outcome = ParseArguments({"--batch-size", wrong});
    EXPECT_EQ(outcome.status, kUsage);
    EXPECT_EQ(outcome.error, "example: --batch-size: expected a number above 0, got '" +
                                 std::string(wrong) + "'; --help lists the flags\n");
  }
  EXPECT_THAT(ParseArguments({"--lr", "-0.1"}).error,
              HasSubstr("--lr: expected 0 or a number above it, got '-0.1'"));
  EXPECT_EQ(ParseArguments({"--bogus"}).status, kUsage);
}

TEST(FlagsTest, HelpIsNoError) { EXPECT_EQ(ParseArguments({"--help"}).status, 0); }

}  // namespace
}  // namespace cadre::flags
