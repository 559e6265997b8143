// Tests command lines in the syntax of getopt_long; the errors are those that glibc's prints.
#include "launcher/slurm/option_parser.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Option> Table() {
  return {
      {"nodes", 'N', OptionValue::kRequired},  {"nodelist", 'w', OptionValue::kRequired},
      {"no-kill", 'k', OptionValue::kNone},    {"kill-on-bad-exit", 'K', OptionValue::kOptional},
      {"label", 'l', OptionValue::kNone},      {"exclusive", '\0', OptionValue::kOptional},
      {"unbuffered", 'u', OptionValue::kNone}, {"", 'y', OptionValue::kNone}};
}

// The options as "place NAME=VALUE", and the other words.
std::string Texts(const std::vector<std::string>& arguments,
                  AfterFirstWord after = AfterFirstWord::kAllWords) {
  const auto parsed = ParseOptions(arguments, Table(), after);
  if (!parsed.ok()) return std::string(parsed.status().message());
  std::string text;
  for (const GivenOption& option : parsed->options) {
    absl::StrAppend(&text, option.place, " ", option.name,
                    option.has_value ? absl::StrCat("=", option.value) : "", ", ");
  }
  return absl::StrCat(text, "[", absl::StrJoin(parsed->rest, " "), "]");
}

TEST(OptionParserTest, FormsOfOneOption) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"-N2"}, {"-N", "2"}}) {
    EXPECT_EQ(Texts(words), "-N nodes=2, []");
  }
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--nodes=2"}, {"--nodes", "2"}, {"--nodes", "2", "--"}}) {
    EXPECT_EQ(Texts(words), "--nodes nodes=2, []");
  }
  EXPECT_EQ(Texts({"--nodes="}), "--nodes nodes=, []");
  EXPECT_EQ(Texts({"--nodes", "-l"}), "--nodes nodes=-l, []");
}

TEST(OptionParserTest, Clusters) {
  EXPECT_EQ(Texts({"-luN2"}), "-l label, -u unbuffered, -N nodes=2, []");
  EXPECT_EQ(Texts({"-yl"}), "-y y, -l label, []");
}

TEST(OptionParserTest, OptionalValuesAreInTheSameWord) {
  EXPECT_EQ(Texts({"-K", "1"}), "-K kill-on-bad-exit, [1]");
  EXPECT_EQ(Texts({"-K1"}), "-K kill-on-bad-exit=1, []");
  EXPECT_EQ(Texts({"--exclusive", "user"}), "--exclusive exclusive, [user]");
  EXPECT_EQ(Texts({"--exclusive=user"}), "--exclusive exclusive=user, []");
}

TEST(OptionParserTest, ShortenedNames) {
  EXPECT_EQ(Texts({"--lab"}), "--label label, []");
  EXPECT_EQ(Texts({"--nodel", "n1"}), "--nodelist nodelist=n1, []");
  EXPECT_EQ(Texts({"--node", "n1"}),
            "option '--node' is ambiguous; possibilities: '--nodes' '--nodelist'");
}

TEST(OptionParserTest, TheProgramsWordsAreItsOwn) {
  EXPECT_EQ(Texts({"-l", "hostname", "-l", "--nodes=3"}), "-l label, [hostname -l --nodes=3]");
  EXPECT_EQ(Texts({"-l", "--", "-x", "--"}), "-l label, [-x --]");
  EXPECT_EQ(Texts({"-", "-l"}), "[- -l]");
  EXPECT_EQ(Texts({"7", "-l", "8"}, AfterFirstWord::kOptionsToo), "-l label, [7 8]");
  EXPECT_EQ(Texts({"7", "--", "-l"}, AfterFirstWord::kOptionsToo), "[7 -l]");
}

TEST(OptionParserTest, Errors) {
  EXPECT_EQ(Texts({"--ndoes=2"}), "unrecognized option '--ndoes'; did you mean '--nodes'?");
  EXPECT_EQ(Texts({"--what"}), "unrecognized option '--what'");
  EXPECT_EQ(Texts({"-z"}), "invalid option -- 'z'");
  EXPECT_EQ(Texts({"-N"}), "option requires an argument -- 'N'");
  EXPECT_EQ(Texts({"--nodes"}), "option '--nodes' requires an argument");
  EXPECT_EQ(Texts({"--label=1"}), "option '--label' doesn't allow an argument");
  EXPECT_EQ(Texts({"--=1"}), "unrecognized option '--'");
}

TEST(OptionParserTest, TheLastOneCounts) {
  const auto parsed = ParseOptions({"-N1", "-N2", "a"}, Table());
  ASSERT_OK(parsed);
  ASSERT_NE(FindOption(*parsed, "nodes"), nullptr);
  EXPECT_EQ(FindOption(*parsed, "nodes")->value, "2");
  EXPECT_EQ(FindOption(*parsed, "label"), nullptr);
  EXPECT_THAT(parsed->rest, ElementsAre("a"));
  EXPECT_THAT(ParseOptions({}, Table())->options, IsEmpty());
}

}  // namespace
}  // namespace cadre::launcher
