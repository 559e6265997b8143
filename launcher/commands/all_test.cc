// The table of commands.
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "launcher/commands/commands.h"

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

// The parser is told of those alone that an argument mentions, and would not see the others.
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

}  // namespace
}  // namespace cadre::launcher
