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

// What is written without the prefix is what the program wrote.
TEST(LineAssembler, Add_CarriageReturns_ComeOutAsTheyAre) {
  LineAssembler lines("> ");
  EXPECT_EQ(lines.Add("10%\r20%\r"), "> 10%\r> 20%\r");
  EXPECT_EQ(lines.Add("30%\ndone\n"), "> 30%\n> done\n");
  EXPECT_EQ(lines.Add("windows\r\nunix\n"), "> windows\r\n> unix\n");
  // As tqdm writes.
  EXPECT_EQ(lines.Add("\r 1/3"), "");
  EXPECT_EQ(lines.Add("\r 2/3"), "\r>  1/3\r");
  EXPECT_EQ(lines.Add("\r 3/3\n"), ">  2/3\r>  3/3\n");
  // One bar within another.
  EXPECT_EQ(lines.Add("\ra"), "");
  EXPECT_EQ(lines.Add("\n"), "\r> a\n");
  EXPECT_EQ(lines.Add("\rb\x1b[A"), "");
  EXPECT_EQ(lines.Add("\rc\n"), "\r> b\x1b[A\r> c\n");
}

TEST(LineAssembler, Add_ReturnAtTheEndOfAPiece_TakesTheNewlineOfTheNext) {
  LineAssembler lines("> ");
  EXPECT_EQ(lines.Add("a\r"), "> a\r");
  EXPECT_EQ(lines.Add("\n"), "\n");
  EXPECT_EQ(lines.Add("\n"), "> \n");
  EXPECT_EQ(lines.Add("\r"), "");
  EXPECT_EQ(lines.Add("\r\r\n"), "\r\r\r> \n");
}

TEST(LineAssembler, Add_AMegabyte_IsOneLine) {
  LineAssembler lines("> ");
  const std::string piece(256 << 10, 'x');
  for (int i = 0; i < 4; ++i) EXPECT_EQ(lines.Add(piece), "");
  EXPECT_EQ(lines.Add("\n"), absl::StrCat("> ", piece, piece, piece, piece, "\n"));
}

TEST(LineAssembler, Add_LineOverTheLimit_GoesOnAsItIs) {
  LineAssembler lines("> ");
  const std::string full(kMaxOutputLine, 'x');
  EXPECT_EQ(lines.Add(full), "");
  EXPECT_EQ(lines.Add("y"), absl::StrCat("> ", full));
  EXPECT_TRUE(lines.within_line());
  EXPECT_EQ(lines.Add("z\nnext\n"), "yz\n> next\n");
  EXPECT_FALSE(lines.within_line());
  EXPECT_EQ(lines.Add(absl::StrCat(full, "\n")), absl::StrCat("> ", full, "\n"));
  lines.Add(absl::StrCat(full, "y"));
  EXPECT_EQ(lines.Finish(), "y\n");
}

TEST(LineAssembler, Interrupt_MarksTheBreakAndTheRestHasAPrefix) {
  LineAssembler lines("> ");
  EXPECT_EQ(lines.Interrupt(), "");
  lines.Add(absl::StrCat(std::string(kMaxOutputLine, 'x'), "y"));
  EXPECT_EQ(lines.Interrupt(), absl::StrCat(kSplitMarker, "\n"));
  EXPECT_EQ(lines.Add("z\n"), "> yz\n");
}

TEST(LineAssembler, Add_EndlessLine_KeepsNoMoreThanTheLimit) {
  LineAssembler lines;
  constexpr size_t kBytes = 3 * kMaxOutputLine;
  size_t out = 0;
  for (size_t i = 0; i < kBytes / 16384; ++i) out += lines.Add(std::string(16384, 'x')).size();
  EXPECT_GE(out, kBytes - kMaxOutputLine);
  EXPECT_EQ(out + lines.Finish().size(), kBytes + 1);
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
