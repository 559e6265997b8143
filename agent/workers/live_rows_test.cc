#include "agent/workers/live_rows.h"

#include "absl/strings/str_cat.h"
#include "agent/workers/rank_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kUp[] = "\x1b[A";

TEST(LiveRowsTest, LinesComeOutAtOnce_AndNoRowIsLeft) {
  LiveRows rows("> ");
  EXPECT_EQ(rows.Add("he"), "");
  EXPECT_THAT(rows.Drawn(), IsEmpty());
  EXPECT_EQ(rows.Add("llo\nwor"), "> hello\n");
  EXPECT_EQ(rows.Add("ld\n\n\x1b[31mred\x1b[0m\t1\n"), "> world\n> \n> \x1b[31mred\x1b[0m\t1\n");
  EXPECT_EQ(rows.Add("windows\r\nno bar"), "> windows\n");
  EXPECT_THAT(rows.Drawn(), IsEmpty());
  EXPECT_EQ(rows.Finish(), "> no bar\n");
  EXPECT_EQ(rows.Finish(), "");
}

// An hour of a bar is one row, and one line when it is over.
TEST(LiveRowsTest, ABar) {
  LiveRows rows("> ");
  EXPECT_EQ(rows.Add("begins\n"), "> begins\n");
  for (int i = 0; i < 1000; ++i) {
    const std::string state = absl::StrCat("\x1b[32m", i, "/1000\x1b[0m");
    EXPECT_EQ(rows.Add(absl::StrCat("\r", state)), "");
    EXPECT_THAT(rows.Drawn(), ElementsAre("> " + state));
  }
  EXPECT_EQ(rows.Add("\r1000/1000   \n"), "");
  EXPECT_EQ(rows.Add("ends\n"), "> 1000/1000\n> ends\n");
  EXPECT_THAT(rows.Drawn(), IsEmpty());
  // The return may come behind the text, too.
  EXPECT_EQ(rows.Add("1%\r"), "");
  EXPECT_THAT(rows.Drawn(), ElementsAre("> 1%"));
  EXPECT_EQ(rows.Add("2%\r"), "");
  EXPECT_THAT(rows.Drawn(), ElementsAre("> 2%"));
  EXPECT_EQ(rows.Finish(), "> 2%\n");
}

TEST(LiveRowsTest, OneBarAfterAnother) {
  LiveRows rows;
  std::string out;
  for (const char* name : {"a", "b", "c"}) {
    for (int i = 0; i < 3; ++i) out += rows.Add(absl::StrCat("\r", name, i));
    out += rows.Add("\n");
  }
  EXPECT_EQ(out, "a2\nb2\n");
  EXPECT_EQ(rows.Finish(), "c2\n");
}

// As tqdm writes where one loop is within another: what moves the cursor is flushed by itself.
TEST(LiveRowsTest, ABarWithinABar_IsOneRowEachAndLeavesTheOuterOne) {
  LiveRows rows;
  std::string out = rows.Add("\router 0/2");
  for (int outer = 1; outer <= 2; ++outer) {
    for (int inner = 0; inner <= 3; ++inner) {
      out += rows.Add("\n");
      out += rows.Add(absl::StrCat("\rinner ", inner, "/3"));
      out += rows.Add(kUp);
      EXPECT_THAT(rows.Drawn(), ElementsAre(absl::StrCat("outer ", outer - 1, "/2"),
                                            absl::StrCat("inner ", inner, "/3")));
    }
    for (const char* bytes : {"\n", "\r         ", kUp}) out += rows.Add(bytes);
    EXPECT_THAT(rows.Drawn(), ElementsAre(absl::StrCat("outer ", outer - 1, "/2")));
    out += rows.Add(absl::StrCat("\router ", outer, "/2"));
  }
  EXPECT_EQ(out, "");
  out += rows.Add("\n");
  EXPECT_EQ(out + rows.Finish(), "outer 2/2\n");
}

TEST(LiveRowsTest, ThreeBars_TheLastIsDrawnFirst) {
  LiveRows rows;
  EXPECT_EQ(rows.Add(absl::StrCat("\n\n\rc0", kUp, kUp)), "");
  EXPECT_EQ(rows.Add("\ra0"), "");
  for (int i = 1; i < 5; ++i) {
    EXPECT_EQ(rows.Add(absl::StrCat("\n\rb", i, kUp)), "");
    EXPECT_EQ(rows.Add(absl::StrCat("\n\n\rc", i, kUp, kUp, "\ra", i)), "");
  }
  EXPECT_THAT(rows.Drawn(), ElementsAre("a4", "b4", "c4"));
}

// A log line on the stream of the bars pushes them down.
TEST(LiveRowsTest, ALineAmongBars_ComesOutOnceTheyAreDrawnBelowIt) {
  LiveRows rows;
  std::string out;
  for (int i = 1; i < 6; ++i) {
    if (i == 3) {
      for (const char* bytes : {"\r      ", "\rwarning\n"}) out += rows.Add(bytes);
    }
    out += rows.Add(absl::StrCat("\router", i));
    out += rows.Add("\n");
    out += rows.Add(absl::StrCat("\rinner", i));
    out += rows.Add(kUp);
  }
  EXPECT_EQ(out, "warning\n");
  EXPECT_THAT(rows.Drawn(), ElementsAre("outer5", "inner5"));
}

// As rich draws a table of bars: it hides the cursor, and clears the rows from below.
TEST(LiveRowsTest, RowsThatAreClearedAndDrawnAnew) {
  LiveRows rows;
  EXPECT_EQ(rows.Add("\x1b[?25l"), "");
  for (int i = 0; i < 5; ++i) {
    if (i > 0) rows.Add("\r\x1b[2K\x1b[1A\x1b[2K");
    EXPECT_EQ(rows.Add(absl::StrCat("\x1b[35mone\x1b[0m ", i, "\ntwo ", i)), "");
    EXPECT_THAT(rows.Drawn(),
                ElementsAre(absl::StrCat("\x1b[35mone\x1b[0m ", i), absl::StrCat("two ", i)));
  }
  // It prints above them.
  std::string out = rows.Add("\r\x1b[2K\x1b[1A\x1b[2Kprinted\none 5\ntwo 5");
  for (int i = 6; i < 9; ++i) {
    out += rows.Add(absl::StrCat("\r\x1b[2K\x1b[1A\x1b[2Kone ", i, "\ntwo ", i));
  }
  EXPECT_EQ(out, "printed\n");
  EXPECT_EQ(rows.Add("\n\x1b[?25h"), "");
  EXPECT_EQ(rows.Add("done\n"), "one 8\ntwo 8\ndone\n");
}

TEST(LiveRowsTest, SequencesMayComeInPieces) {
  LiveRows rows;
  for (const char* bytes : {"\ra1", "\n", "\rb1", "\x1b", "[", "A", "\ra2", "\x1b[3", "2m!"}) {
    EXPECT_EQ(rows.Add(bytes), "");
  }
  EXPECT_THAT(rows.Drawn(), ElementsAre("a2\x1b[32m!", "b1"));
}

TEST(LiveRowsTest, WhatElseCommandsATerminalIsLeftOut) {
  LiveRows rows;
  EXPECT_EQ(
      rows.Add("\x1b]0;title\x07me\x1b[2J\x1b[5;5H \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n"),
      "me link\n");
  EXPECT_EQ(rows.Add("|\b/\b-"), "");
  EXPECT_THAT(rows.Drawn(), ElementsAre("-"));
  // Nothing that a program writes makes it grow.
  EXPECT_EQ(rows.Add(std::string(10000, '\b')), "");
  for (int i = 0; i < 10000; ++i) rows.Add("\x1b[999999A\x1b[31m");
  EXPECT_LE(rows.Drawn().size(), 1u);
  rows.Add("\x1b[999999Bx");
  EXPECT_LE(rows.Drawn().size(), 40u);
}

TEST(LiveRowsTest, ABarThatIsDoneStandsAboveWhatIsPrintedElsewhere) {
  LiveRows rows;
  rows.Add("\r1/2\r2/2");
  EXPECT_EQ(rows.WroteElsewhere(), "") << "it goes on";
  rows.Add("\n");
  EXPECT_EQ(rows.WroteElsewhere(), "2/2\n");
  EXPECT_THAT(rows.Drawn(), IsEmpty());
}

TEST(LiveRowsTest, AfterDroppedBytes_SaysHowMany) {
  LiveRows rows("> ");
  EXPECT_EQ(rows.Add("\r1/2"), "");
  EXPECT_EQ(rows.Add("on\n", 4096),
            "> 1/2\n> [4096 bytes left out here; the log file has them]\n> on\n");
}

TEST(LiveRowsTest, AnEndlessLineIsSplit) {
  LiveRows rows;
  std::string out;
  for (int i = 0; i < 100; ++i) out += rows.Add(std::string(100000, 'x'));
  EXPECT_GE(out.size(), 10000000 - kMaxOutputLine);
  EXPECT_EQ(out.substr(kMaxOutputLine, kSplitMarker.size() + 1), absl::StrCat(kSplitMarker, "\n"));
}

}  // namespace
}  // namespace cadre::agent
