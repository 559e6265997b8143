#include "agent/workers/rank_output.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

TEST(LinePrefix, Default_IsHostAndRank) {
  EXPECT_EQ(LinePrefix("", {"n1", "default", 5, 1}), "[n1:5] ");
}

TEST(LinePrefix, Template_OfTorchrun_IsFilled) {
  EXPECT_EQ(
      LinePrefix("${role_name}/${rank}/${local_rank}/${host} ${other}:", {"n1", "trainer", 5, 1}),
      "trainer/5/1/n1 ${other}:");
}

TEST(LinePrefix, Hostname_IsTheHost) {
  EXPECT_EQ(LinePrefix("${hostname}:${rank}: ", {"n1", "trainer", 5, 1}), "n1:5: ");
}

TEST(LineAssembler, Add_PiecesOfLines_GiveWholeLinesOnly) {
  LineAssembler lines("[n:0] ");
  EXPECT_EQ(lines.Add("he"), "");
  EXPECT_EQ(lines.Add("llo\nwor"), "[n:0] hello\n");
  EXPECT_EQ(lines.Add("ld\n\nx"), "[n:0] world\n[n:0] \n");
  EXPECT_EQ(lines.Finish(), "[n:0] x\n");
  EXPECT_EQ(lines.Finish(), "");
}

TEST(LineAssembler, Add_CarriageReturns_ComeOutAsTheyAre) {
  LineAssembler lines("> ");
  EXPECT_EQ(lines.Add("10%\r20%\r"), "> 10%\r> 20%\r");
  EXPECT_EQ(lines.current(), "");
  EXPECT_EQ(lines.Add("30%\ndone\n"), "> 30%\n> done\n");
  EXPECT_EQ(lines.Add("windows\r\nunix\n"), "> windows\n> unix\n");
  // As tqdm writes.
  EXPECT_EQ(lines.Add("\r 1/3"), "");
  EXPECT_EQ(lines.Add("\r 2/3"), ">  1/3\r");
  EXPECT_EQ(lines.Add("\r 3/3\n"), ">  2/3\r>  3/3\n");
}

TEST(LineAssembler, Add_ReturnAtTheEndOfAPiece_TakesTheNewlineOfTheNext) {
  LineAssembler lines("> ");
  EXPECT_EQ(lines.Add("a\r"), "> a\r");
  EXPECT_EQ(lines.Add("\n"), "\n");
  EXPECT_EQ(lines.Add("\n"), "> \n");
}

// An hour of four bars is one line.
TEST(LineAssembler, Add_LinesThatAreOverwritten_AreShownByWhoDraws) {
  LineAssembler lines("> ", LineAssembler::Returns::kOverwrites);
  EXPECT_EQ(lines.Add("begins\n"), "> begins\n");
  for (int i = 0; i < 1000; ++i) {
    const std::string state = absl::StrCat("\r\x1b[32m", i, "/1000\x1b[0m");
    EXPECT_EQ(lines.Add(state), "");
    EXPECT_EQ(lines.current(), state.substr(1));
  }
  EXPECT_EQ(lines.Add("\r1000/1000\n"), "> 1000/1000\n");
  EXPECT_EQ(lines.current(), "");
  EXPECT_EQ(lines.Add("windows\r\nno bar"), "> windows\n");
  EXPECT_EQ(lines.current(), "");
  // The return may come behind the text, too.
  lines.Finish();
  EXPECT_EQ(lines.Add("1%\r"), "");
  EXPECT_EQ(lines.current(), "1%");
  EXPECT_EQ(lines.Add("2%\r"), "");
  EXPECT_EQ(lines.current(), "2%");
  EXPECT_EQ(lines.Finish(), "> 2%\n");
  EXPECT_EQ(lines.current(), "");
}

TEST(LineAssembler, Add_LineOverTheLimit_IsSplitAndNothingIsLost) {
  LineAssembler lines;
  const std::string full(kMaxOutputLine, 'x');
  EXPECT_EQ(lines.Add(full), "");
  EXPECT_EQ(lines.Add("y\n"), absl::StrCat(full, kSplitMarker, "\ny\n"));
  EXPECT_EQ(lines.Add(absl::StrCat(full, "\n")), absl::StrCat(full, "\n"));
}

TEST(LineAssembler, Add_EndlessLine_KeepsNoMoreThanTheLimit) {
  LineAssembler lines;
  size_t out = 0;
  for (int i = 0; i < 100; ++i) out += lines.Add(std::string(10000, 'x')).size();
  EXPECT_GE(out, 1000000 - kMaxOutputLine);
  EXPECT_LE(lines.Finish().size(), kMaxOutputLine + 1);
}

TEST(LineAssembler, Add_AfterDroppedBytes_SaysHowMany) {
  LineAssembler lines("> ");
  lines.Add("cut");
  EXPECT_EQ(lines.Add("on\n", 4096),
            absl::StrCat("> cut", kSplitMarker,
                         "\n> [4096 bytes left out here; the log file has them]\n> on\n"));
}

TEST(LineAssembler, Add_ColoursAndTabs_StayAsTheyAre) {
  LineAssembler lines;
  EXPECT_EQ(lines.Add("\x1b[31mred\x1b[0m\t1\n"), "\x1b[31mred\x1b[0m\t1\n");
}

}  // namespace
}  // namespace cadre::agent
