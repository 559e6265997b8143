#include "launcher/flags/scripts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<Command> Example() {
  Command run;
  run.name = "run";
  run.summary = "Run a program.";
  run.flags = {{"nnodes", "N", "Nodes that take part [1]."}, {"module", "", "It's a module."}};
  run.flags[1].short_name = 'm';
  Command why;
  why.name = "why";
  why.summary = "Say why.";
  return {run, why};
}

TEST(ScriptsTest, EveryShell_KnowsEveryCommandAndFlag) {
  EXPECT_THAT(BashCompletion(Example()), HasSubstr("compgen -W 'run why'"));
  EXPECT_THAT(BashCompletion(Example()), HasSubstr("--nnodes --module --help --help-all"));
  EXPECT_THAT(ZshCompletion(Example()),
              HasSubstr("'--nnodes=[Nodes that take part (1).]:N:_files'"));
  EXPECT_THAT(ZshCompletion(Example()), HasSubstr("It'\\''s a module."));
  EXPECT_THAT(FishCompletion(Example()), HasSubstr("-l nnodes -r"));
  EXPECT_THAT(FishCompletion(Example()), HasSubstr("-l module -s m -d 'It\\'s a module.'"));
}

TEST(ScriptsTest, AfterSet_PathsAreCompleted) {
  std::vector<Command> commands = Example();
  commands[0].flags.push_back({"set", "PATH=VALUE", "A property."});
  commands[0].properties = [] {
    return std::vector<Flag>{{"nodes", "N", "Nodes."}, {"restart.max", "N", "Restarts."}};
  };
  EXPECT_THAT(BashCompletion(commands), HasSubstr(" paths='nodes= restart.max=' ;;"));
  EXPECT_THAT(ZshCompletion(commands),
              HasSubstr("[A property.]:PATH=VALUE:{compadd -S = -- nodes restart.max}'"));
  EXPECT_THAT(FishCompletion(commands), HasSubstr("-l set -r -f -a 'nodes= restart.max='"));
  EXPECT_THAT(ManualPage(commands), HasSubstr(".B restart.max=N\nRestarts.\n"));
}

TEST(ScriptsTest, OldFlags_AreNotOffered) {
  std::vector<Command> commands = Example();
  commands[0].flags[0].old = true;
  for (const std::string& script : {BashCompletion(commands), ZshCompletion(commands),
                                    FishCompletion(commands), ManualPage(commands)}) {
    EXPECT_THAT(script, Not(HasSubstr("nnodes")));
  }
}

TEST(ScriptsTest, ManualPage_HasEveryFlag) {
  EXPECT_THAT(ManualPage(Example()), HasSubstr(".B \\-\\-nnodes N\n"));
  EXPECT_THAT(ManualPage(Example()), HasSubstr(".B \\-m, \\-\\-module\n"));
}

}  // namespace
}  // namespace cadre::launcher
