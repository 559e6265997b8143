// Tests the command line of cadre submit.
#include "launcher/commands/submit_line.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Flag> Own() {
  return {{"follow", "", "Follow."}, {"output", "plain|json", "Form."}, {"token-file", "FILE", ""}};
}

// "own: NAME=VALUE; sbatch: NAME=VALUE; REST", with "program" in front of a program.
std::string Text(const SubmitLine& line) {
  std::string text = "own:";
  for (const auto& [name, values] : line.own.flags) {
    absl::StrAppend(&text, " ", name, "=", absl::StrJoin(values, ","));
  }
  absl::StrAppend(&text, "; sbatch:");
  for (const GivenOption& option : line.sbatch) {
    absl::StrAppend(&text, " ", option.name, "=", option.value);
  }
  return absl::StrCat(text, "; ", line.is_program ? "program " : "", absl::StrJoin(line.rest, " "));
}

std::string Read(const std::vector<std::string>& arguments) {
  const auto line = ReadSubmitLine(arguments, Own());
  return line.ok() ? Text(*line) : std::string(line.status().message());
}

TEST(SubmitLineTest, ItsOwnFlagsAndThoseOfSbatch) {
  EXPECT_EQ(Read({"--follow", "-N2", "--token_file", "t", "--time=5", "a.sh"}),
            "own: follow=1 token-file=t; sbatch: nodes=2 time=5; a.sh");
  EXPECT_EQ(Read({"-h"}), "own: help=1; sbatch:; ");
  EXPECT_EQ(Read({"--help-all", "a"}), "own: help-all=1; sbatch:; a");
  EXPECT_EQ(Read({}), "own:; sbatch:; ");
  EXPECT_THAT(Read({"--folow"}), HasSubstr("did you mean '--follow'?"));
}

TEST(SubmitLineTest, OutputHasTwoMeanings) {
  EXPECT_EQ(Read({"--output", "json", "a"}), "own: output=json; sbatch:; a");
  EXPECT_EQ(Read({"--output=plain", "a"}), "own: output=plain; sbatch:; a");
  EXPECT_EQ(Read({"--output=a.out", "a"}), "own:; sbatch: output=a.out; a");
  EXPECT_EQ(Read({"-o", "json", "a"}), "own:; sbatch: output=json; a");
}

TEST(SubmitLineTest, ArgumentsOfAScriptOrAProgramAreItsOwn) {
  EXPECT_EQ(Read({"a.sh", "--follow", "-N2"}), "own:; sbatch:; a.sh --follow -N2");
  EXPECT_EQ(Read({"-N2", "--", "a", "--", "-N3"}), "own:; sbatch: nodes=2; program a -- -N3");
  EXPECT_EQ(Read({"-N2", "--comment", "--", "a"}), "own:; sbatch: nodes=2 comment=--; a");
  EXPECT_EQ(Read({"a", "--", "b"}), "own:; sbatch:; a -- b");
}

TEST(SubmitLineTest, FlagsMayFollowTheFileOfAJob) {
  auto line = ReadSubmitLine({"-N2", "job.yaml", "--follow", "--output", "json"}, Own());
  ASSERT_OK(line);
  ASSERT_OK(ReadFlagsAfterFile(Own(), &*line));
  EXPECT_EQ(Text(*line), "own: follow=1 output=json; sbatch: nodes=2; job.yaml");
  line = ReadSubmitLine({"job.yaml", "other.yaml"}, Own());
  ASSERT_OK(line);
  EXPECT_THAT(ReadFlagsAfterFile(Own(), &*line),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'other.yaml'")));
}

}  // namespace
}  // namespace cadre::launcher
