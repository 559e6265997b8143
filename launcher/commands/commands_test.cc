// Tests the table of commands.
#include "launcher/commands/commands.h"

#include <set>
#include <string>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "launcher/flags/parser.h"

namespace cadre::launcher {
namespace {

TEST(AllCommandsTest, EachIsFoundByTheNameThatItHas) {
  for (const Command& command : AllCommands()) {
    const std::optional<Command> found = FindCommand(command.name);
    ASSERT_TRUE(found.has_value()) << command.name;
    EXPECT_EQ(found->name, command.name);
  }
  EXPECT_FALSE(FindCommand("ru").has_value());
}

// They are not listed, and take Slurm's flags.
TEST(AllCommandsTest, SlurmsCommands) {
  for (const std::string& name : SlurmNames()) {
    const std::optional<Command> found = FindCommand(name);
    ASSERT_TRUE(found.has_value()) << name;
    EXPECT_EQ(found->name, name);
    EXPECT_TRUE(found->own_syntax) << name;
    for (const Command& command : AllCommands()) EXPECT_NE(command.name, name);
  }
}

// The parser is given only the flags that an argument mentions, and would not notice duplicates.
TEST(AllCommandsTest, NoTwoFlagsOfACommandHaveOneName) {
  for (const Command& command : AllCommands()) {
    std::set<std::string> names = {"help", "help-all", "h"};
    for (const Flag& flag : command.flags) {
      EXPECT_TRUE(names.insert(flag.name).second) << command.name << " --" << flag.name;
      if (flag.short_name == '\0') continue;
      EXPECT_TRUE(names.insert(std::string(1, flag.short_name)).second)
          << command.name << " -" << flag.short_name;
    }
  }
}

TEST(RunCommandTest, ItsHelpFitsOnOneScreen) {
  const std::vector<std::string> lines = absl::StrSplit(HelpText(*FindCommand("run")), '\n');
  EXPECT_LE(lines.size(), 41u) << "with the empty one after the last line's end";
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
  const std::vector<std::string> all =
      absl::StrSplit(HelpText(*FindCommand("run"), /*all=*/true), '\n');
  for (const std::string& line : all) EXPECT_LE(line.size(), 100u) << line;
}

}  // namespace
}  // namespace cadre::launcher
