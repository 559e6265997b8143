#include "launcher/flags/parser.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Command Example() {
  Command command;
  command.name = "run";
  command.summary = "Runs.";
  command.positionals = "[--] PROGRAM";
  command.takes_program = true;
  command.flags = {{"nproc-per-node", "N", "Workers."},
                   {"standalone", "", "Alone."},
                   {"env", "K=V", "More environment."}};
  command.flags[2].repeated = true;
  command.flags.push_back({"module", "", "A module."});
  command.flags.back().short_name = 'm';
  return command;
}

TEST(ParserTest, DashAndUnderscoreAndEquals_AreTheSame) {
  for (const std::vector<std::string>& form :
       {std::vector<std::string>{"--nproc-per-node", "2", "prog"},
        {"--nproc_per_node", "2", "prog"},
        {"--nproc_per_node=2", "prog"},
        {"--nproc-per-node=2", "--", "prog"}}) {
    const auto parsed = ParseArguments(Example(), form);
    ASSERT_OK(parsed);
    EXPECT_EQ(parsed->Get("nproc-per-node"), "2");
    EXPECT_THAT(parsed->rest, ElementsAre("prog"));
  }
}

TEST(ParserTest, EqualsAndNothing_IsEmptyText) {
  for (const std::vector<std::string>& form :
       {std::vector<std::string>{"--nproc_per_node=", "--env=A", "prog"},
        {"--nproc-per-node", "", "--env", "A", "prog"},
        {"--env=A", "--nproc-per-node=", "prog"},
        {"-m", "--env", "A", "--nproc-per-node=", "--", "prog"}}) {
    const auto parsed = ParseArguments(Example(), form);
    ASSERT_OK(parsed);
    EXPECT_EQ(parsed->Get("nproc-per-node"), "");
    EXPECT_THAT(parsed->flags.at("env"), ElementsAre("A"));
    EXPECT_THAT(parsed->rest, ElementsAre("prog"));
  }
}

TEST(ParserTest, EqualsAndNothing_OfAValueOrOfTheProgramStays) {
  const auto parsed = ParseArguments(
      Example(), {"--env", "--nproc-per-node=", "--env=A=", "prog", "--nproc-per-node="});
  ASSERT_OK(parsed);
  EXPECT_THAT(parsed->flags.at("env"), ElementsAre("--nproc-per-node=", "A="));
  EXPECT_FALSE(parsed->Has("nproc-per-node"));
  EXPECT_THAT(parsed->rest, ElementsAre("prog", "--nproc-per-node="));
  EXPECT_THAT(ParseArguments(Example(), {"--", "--nproc-per-node=", "x"})->rest,
              ElementsAre("--nproc-per-node=", "x"));
}

TEST(ParserTest, AfterTheProgram_NothingIsOurs) {
  const auto parsed = ParseArguments(
      Example(), {"--standalone", "-m", "prog", "--nproc-per-node", "9", "-m", "--", "--help"});
  ASSERT_OK(parsed);
  EXPECT_TRUE(parsed->Has("standalone"));
  EXPECT_TRUE(parsed->Has("module"));
  EXPECT_FALSE(parsed->Has("nproc-per-node"));
  EXPECT_FALSE(parsed->Has("help"));
  EXPECT_THAT(parsed->rest, ElementsAre("prog", "--nproc-per-node", "9", "-m", "--", "--help"));
}

TEST(ParserTest, AfterTwoDashes_AFlagIsAProgram) {
  const auto parsed = ParseArguments(Example(), {"--standalone", "--", "--odd", "-x"});
  ASSERT_OK(parsed);
  EXPECT_THAT(parsed->rest, ElementsAre("--odd", "-x"));
}

TEST(ParserTest, AfterASpecFile_FlagsGoOn) {
  Command command = Example();
  command.spec_flag = "spec";
  command.flags.push_back({"spec", "FILE", "A file."});
  for (const std::vector<std::string>& form :
       {std::vector<std::string>{"job.yaml", "--nproc-per-node", "2", "--standalone"},
        {"--standalone", "job.yaml", "--nproc_per_node=2"},
        {"--nproc-per-node", "2", "--standalone", "job.yaml"}}) {
    const auto parsed = ParseArguments(command, form);
    ASSERT_OK(parsed);
    EXPECT_EQ(parsed->Get("spec"), "job.yaml");
    EXPECT_EQ(parsed->Get("nproc-per-node"), "2");
    EXPECT_TRUE(parsed->Has("standalone"));
    EXPECT_TRUE(parsed->rest.empty());
  }
  EXPECT_EQ(ParseArguments(command, {"a.yml", "--help"})->Get("help"), "1");
  EXPECT_THAT(ParseArguments(command, {"a.yml", "other", "--standalone"})->rest,
              ElementsAre("other", "--standalone"));
  EXPECT_THAT(ParseArguments(command, {"--", "a.yml", "--standalone"})->rest,
              ElementsAre("a.yml", "--standalone"));
  EXPECT_THAT(ParseArguments(command, {"prog", "a.yml"})->rest, ElementsAre("prog", "a.yml"));
  EXPECT_THAT(ParseArguments(command, {"a.yml", "--nproc-per-nod", "2"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'--nproc-per-node'")));
  for (const std::vector<std::string>& two :
       {std::vector<std::string>{"a.yml", "b.yaml"}, {"--spec", "a.yml", "b.yaml"}}) {
    EXPECT_THAT(ParseArguments(command, two),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'a.yml' and 'b.yaml'")));
  }
}

TEST(ParserTest, SwitchWithAValue_IsRefusedByName) {
  for (const char* argument : {"--standalone=7", "--standalone=x", "--standalone=false"}) {
    EXPECT_THAT(ParseArguments(Example(), {argument, "prog"}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("--standalone takes no value, got '")))
        << argument;
  }
  EXPECT_OK(ParseArguments(Example(), {"prog", "--standalone=7"}));
}

TEST(ParserTest, UnknownFlag_NamesTheNearest) {
  EXPECT_THAT(ParseArguments(Example(), {"--nproc-per-nod", "2", "prog"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("unknown flag '--nproc-per-nod'; did you mean "
                                 "'--nproc-per-node'?")));
  for (const char* argument : {"-np", "--nprocs"}) {
    EXPECT_THAT(ParseArguments(Example(), {argument, "2", "prog"}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'--nproc-per-node'?")));
  }
  EXPECT_THAT(ParseArguments(Example(), {"--hlep", "prog"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean '--help'?")));
  EXPECT_THAT(ParseArguments(Example(), {"--zzzzzz", "prog"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cadre run --help")));
}

TEST(ParserTest, TorchrunsFlagsMayBeCutShort) {
  Command command = Example();
  command.flags.push_back({"redirects", "WHAT", "To files."});
  command.flags.push_back({"rdzv-id", "ID", "A name."});
  command.flags.push_back({"rdzv-conf", "K=V", "More."});
  for (size_t i = 4; i < command.flags.size(); ++i) command.flags[i].torchrun = true;
  for (const std::vector<std::string>& form : {std::vector<std::string>{"--redirect=3", "prog"},
                                               {"--redir", "3", "prog"},
                                               {"--re", "3", "--", "prog"}}) {
    const auto parsed = ParseArguments(command, form);
    ASSERT_OK(parsed);
    EXPECT_EQ(parsed->Get("redirects"), "3");
    EXPECT_THAT(parsed->rest, ElementsAre("prog"));
  }
  EXPECT_EQ(ParseArguments(command, {"--rdzv_i=7", "prog"})->Get("rdzv-id"), "7");
  EXPECT_THAT(
      ParseArguments(command, {"--rdzv=7", "prog"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it may be --rdzv-id, --rdzv-conf")));
  // Cadre's own flags cannot be abbreviated, and the program's arguments are not changed.
  EXPECT_FALSE(ParseArguments(command, {"--standal", "prog"}).ok());
  EXPECT_THAT(ParseArguments(command, {"prog", "--redirect=3"})->rest,
              ElementsAre("prog", "--redirect=3"));
}

TEST(ParserTest, TheFirstDashesAfterAScript_AreOurs) {
  EXPECT_THAT(ParseArguments(Example(), {"a.py", "--", "b", "--", "c"})->rest,
              ElementsAre("a.py", "b", "--", "c"));
  EXPECT_THAT(ParseArguments(Example(), {"-m", "a", "--", "b"})->rest, ElementsAre("a", "b"));
  EXPECT_THAT(ParseArguments(Example(), {"--", "a.py", "--", "b"})->rest,
              ElementsAre("a.py", "--", "b"));
  EXPECT_THAT(ParseArguments(Example(), {"a.py", "b", "--", "c"})->rest,
              ElementsAre("a.py", "b", "--", "c"));
  // As with mpirun.
  EXPECT_THAT(ParseArguments(Example(), {"./a", "--", "b"})->rest, ElementsAre("./a", "--", "b"));
}

TEST(ParserTest, WhatManyCommandsShare_EndsTheHelp) {
  Command command = Example();
  command.flags.insert(command.flags.begin(), {"server", "HOST", "Who.", kServerGroup});
  const std::string help = HelpText(command);
  EXPECT_LT(help.find("--standalone"), help.find("Server:\n"));
}

TEST(ParserTest, MissingValue_IsAnError) {
  EXPECT_THAT(ParseArguments(Example(), {"--nproc-per-node"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nproc-per-node")));
}

TEST(ParserTest, LastWins_RepeatedAreKept) {
  const auto parsed = ParseArguments(Example(), {"--env", "A=1", "--nproc-per-node", "1",
                                                 "--nproc-per-node", "3", "--env", "B=2", "p"});
  ASSERT_OK(parsed);
  EXPECT_EQ(parsed->Get("nproc-per-node"), "3");
  EXPECT_THAT(parsed->flags.at("env"), ElementsAre("A=1", "B=2"));
}

TEST(ParserTest, PositionalCount_IsChecked) {
  Command command;
  command.name = "why";
  command.positionals = "JOB";
  command.min_positionals = command.max_positionals = 1;
  EXPECT_OK(ParseArguments(command, {"a"}));
  EXPECT_THAT(ParseArguments(command, {}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseArguments(command, {"a", "b"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'b'")));
  EXPECT_OK(ParseArguments(command, {"--help"}));
}

TEST(ParserTest, Help_ListsEveryFlagOnce) {
  const std::string help = HelpText(Example());
  for (const Flag& flag : Example().flags) EXPECT_THAT(help, HasSubstr("--" + flag.name));
  EXPECT_EQ(help.find("nproc_per_node"), std::string::npos);
}

TEST(HelpTextTest, TorchrunsFlagsStandInOneList_AndOldOnesNowhere) {
  Command command = Example();
  for (Flag& flag : command.flags) flag.everyday = flag.torchrun = true;
  command.flags.push_back({"stop-grace", "TIME", "Now --set timeouts.stop_grace=TIME."});
  command.flags.back().property = "timeouts.stop_grace";
  command.flags.back().old = true;
  const std::string help = HelpText(command);
  EXPECT_THAT(help, HasSubstr(":\n  --nproc-per-node=N --standalone --env=K=V -m/--module\n"));
  EXPECT_THAT(help, HasSubstr("all 4 flags"));
  EXPECT_THAT(help, Not(HasSubstr("stop-grace")));
  EXPECT_THAT(HelpText(command, /*all=*/true), HasSubstr("--stop-grace TIME"));
  EXPECT_THAT(ParseArguments(command, {"--stop-grac", "1s", "prog"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("did you mean '--set timeouts.stop_grace'?")));
}

TEST(HelpTextTest, AllOfIt_HasThePropertiesOfSet) {
  Command command = Example();
  command.flags[0].everyday = true;
  command.details = "More of it.";
  command.properties = [] { return std::vector<Flag>{{"restart.max", "N", "Restarts [0]."}}; };
  EXPECT_THAT(HelpText(command, /*all=*/true), HasSubstr("  restart.max=N               Restarts"));
  EXPECT_THAT(HelpText(command, /*all=*/true), HasSubstr("More of it."));
  EXPECT_THAT(HelpText(command), HasSubstr("flags, and each PATH of --set.\n"));
  EXPECT_THAT(HelpText(command), Not(HasSubstr("More of it.")));
}

TEST(HelpTextTest, LongTexts_GoOnInTheNextLine) {
  Command command = Example();
  command.flags[0].help = std::string(60, 'a') + " " + std::string(60, 'b');
  EXPECT_THAT(HelpText(command),
              HasSubstr(std::string(60, 'a') + "\n" + std::string(30, ' ') + std::string(60, 'b')));
}

TEST(HelpTextTest, SomeFlagsOrAll) {
  Command command = Example();
  EXPECT_EQ(HelpText(command), HelpText(command, /*all=*/true)) << "none is everyday";
  command.flags[0].everyday = true;
  const std::string some = HelpText(command);
  EXPECT_THAT(some, HasSubstr("--" + command.flags[0].name));
  EXPECT_THAT(some, Not(HasSubstr("--" + command.flags[1].name)));
  EXPECT_THAT(some, HasSubstr("--help-all' shows all"));
  EXPECT_THAT(HelpText(command, /*all=*/true), HasSubstr("--" + command.flags[1].name));
  EXPECT_EQ(ParseArguments(command, {"--help-all"})->Get("help-all"), "1");
}

}  // namespace
}  // namespace cadre::launcher
