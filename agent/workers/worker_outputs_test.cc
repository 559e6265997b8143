#include "agent/workers/worker_outputs.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "agent/recording_display.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

supervisor::OutputFrame Out(uint8_t stream, const std::string& bytes) {
  return {1, stream, 0, bytes};
}

TEST(WorkerOutputsTest, WholeLinesWithTheirWorkersPrefix) {
  RecordingDisplay display;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 4, 0});
  outputs.Begin({"h", "default", 5, 1});
  outputs.Add(0, Out(1, "on"));
  outputs.Add(1, Out(2, "bad\n"));
  outputs.Add(0, Out(1, "e\ntwo"));
  EXPECT_EQ(display.standard_output, "[h:4] one\n");
  EXPECT_EQ(display.standard_error, "[h:5] bad\n");
  outputs.FlushAll();
  EXPECT_EQ(display.standard_output, "[h:4] one\n[h:4] two\n");
  outputs.Flush(0);
  outputs.Flush(9);
  EXPECT_EQ(display.standard_output, "[h:4] one\n[h:4] two\n");
}

TEST(WorkerOutputsTest, WhatIsOverwrittenIsTheRanksRows) {
  RecordingDisplay display;
  display.draws = true;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 4, 0});
  outputs.Add(0, Out(2, "\r1/3"));
  outputs.Add(0, Out(2, "\r2/3"));
  EXPECT_THAT(display.current[0], ElementsAre("[h:4] 2/3"));
  outputs.Add(0, Out(1, "a line\n"));
  EXPECT_THAT(display.current[0], ElementsAre("[h:4] 2/3"));
  outputs.Add(0, Out(2, "\n"));
  outputs.Add(0, Out(2, "\rwithin\x1b[A"));
  EXPECT_THAT(display.current[0], ElementsAre("[h:4] 2/3", "[h:4] within"));
  outputs.Add(0, Out(2, "\n\r      \x1b[A\r3/3\n"));
  EXPECT_THAT(display.current[0], ElementsAre("[h:4] 3/3"));
  EXPECT_EQ(display.standard_error, "");
  outputs.Add(0, Out(2, "over\n"));
  EXPECT_THAT(display.current[0], IsEmpty());
  EXPECT_EQ(display.standard_error, "[h:4] 3/3\n[h:4] over\n");
  outputs.Add(0, Out(2, "\r4/3"));
  outputs.Flush(0);
  EXPECT_THAT(display.current[0], IsEmpty());
  EXPECT_EQ(display.standard_error, "[h:4] 3/3\n[h:4] over\n[h:4] 4/3\n");
  // For a pipe, carriage returns are passed on.
  outputs.Add(0, Out(1, "1%\r2%\r"));
  EXPECT_EQ(display.standard_output, "[h:4] a line\n[h:4] 1%\r[h:4] 2%\r");
}

// Lines of other ranks may come between its pieces only if a line is longer than may be held; the
// break is then marked.
//
// Fault (display): A line is longer than 4 MiB -> It is passed on in pieces, and where another
// rank's line must come between the break is marked
TEST(WorkerOutputsTest, NoOtherRanksLineComesIntoALine) {
  RecordingDisplay display;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 4, 0});
  outputs.Begin({"h", "default", 5, 1});
  const std::string piece(256 << 10, 'x');
  for (int i = 0; i < 4; ++i) {
    outputs.Add(0, Out(1, piece));
    outputs.Add(1, Out(1, piece));
    outputs.Add(1, Out(2, "of error\n"));
  }
  EXPECT_EQ(display.standard_output, "");
  outputs.Add(1, Out(1, "1\n"));
  outputs.Add(0, Out(1, "0\n"));
  const std::string line = piece + piece + piece + piece;
  EXPECT_EQ(display.standard_output, "[h:5] " + line + "1\n[h:4] " + line + "0\n");

  display.standard_output.clear();
  const std::string full(kMaxOutputLine, 'y');
  outputs.Add(0, Out(1, full));
  outputs.Add(0, Out(1, "more"));
  outputs.Add(0, Out(1, ", and more\n"));
  EXPECT_EQ(display.standard_output, "[h:4] " + full + "more, and more\n");

  display.standard_output.clear();
  outputs.Add(0, Out(1, full));
  outputs.Add(0, Out(1, "more"));
  outputs.Add(1, Out(1, "other\n"));
  outputs.Add(0, Out(1, ", and more\n"));
  EXPECT_EQ(display.standard_output,
            absl::StrCat("[h:4] ", full, kSplitMarker, "\n[h:5] other\n[h:4] more, and more\n"));
}

TEST(WorkerOutputsTest, ProgressIsReturnedAndNotShown) {
  RecordingDisplay display;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 0, 0});
  EXPECT_EQ(outputs.Add(0, Out(3, "step=1\nste")), "step=1\n");
  EXPECT_EQ(outputs.Add(0, Out(3, "p=2\n")), "step=2\n");
  EXPECT_EQ(outputs.Add(0, Out(1, "step=3\n")), "");
  EXPECT_EQ(display.standard_output, "[h:0] step=3\n");
}

TEST(WorkerOutputsTest, AWorkerThatGoesOnHasAnotherPrefix_OthersAreForgotten) {
  RecordingDisplay display;
  WorkerOutputs outputs({}, display);
  outputs.Begin({"h", "default", 0, 0});
  outputs.Begin({"h", "default", 1, 1});
  outputs.Add(0, Out(1, "before"));
  outputs.Add(1, Out(1, "lost"));
  outputs.KeepOnly({0});
  outputs.Begin({"h", "default", 7, 0});
  outputs.Add(0, Out(1, "after\n"));
  outputs.Add(1, Out(1, "unknown\n"));
  outputs.FlushAll();
  EXPECT_EQ(display.standard_output, "[h:0] before\n[h:7] after\n");
}

TEST(WorkerOutputsTest, FilteredLinesAreInAFileToo) {
  std::string directory = ::testing::TempDir() + "/outputs_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  RecordingDisplay display;
  OutputOptions options;
  options.prefix_template = "${rank}: ";
  options.stdout_filters = {"loss"};
  WorkerOutputs outputs(options, display);
  outputs.OpenFiltered("");
  outputs.OpenFiltered(directory);
  outputs.Begin({"h", "default", 2, 0});
  outputs.Add(0, Out(1, "loss 1\nother\n"));
  outputs.Add(0, Out(2, "loss 2\n"));
  outputs.OpenFiltered("/proc/none");
  EXPECT_THAT(display.own, HasSubstr("cannot write /proc/none/filtered_stdout.log"));
  std::stringstream content;
  content << std::ifstream(directory + "/filtered_stdout.log").rdbuf();
  EXPECT_EQ(content.str(), "2: loss 1\n");
  EXPECT_FALSE(std::filesystem::exists(directory + "/filtered_stderr.log"));
  std::filesystem::remove_all(directory);
}

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

// Without the prefix, exactly what the program wrote is left.
TEST(LineAssembler, Add_CarriageReturns_ComeOutAsTheyAre) {
  LineAssembler lines("> ");
  EXPECT_EQ(lines.Add("10%\r20%\r"), "> 10%\r> 20%\r");
  EXPECT_EQ(lines.Add("30%\ndone\n"), "> 30%\n> done\n");
  EXPECT_EQ(lines.Add("windows\r\nunix\n"), "> windows\r\n> unix\n");
  // As tqdm writes.
  EXPECT_EQ(lines.Add("\r 1/3"), "");
  EXPECT_EQ(lines.Add("\r 2/3"), "\r>  1/3\r");
  EXPECT_EQ(lines.Add("\r 3/3\n"), ">  2/3\r>  3/3\n");
  // A bar within another bar:
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

constexpr char kUp[] = "\x1b[A";

TEST(LiveRowsTest, LinesComeOutAtOnce_AndNoRowIsLeft) {
  TerminalRows rows("> ");
  EXPECT_EQ(rows.Add("he"), "");
  EXPECT_THAT(rows.Drawn(), IsEmpty());
  EXPECT_EQ(rows.Add("llo\nwor"), "> hello\n");
  EXPECT_EQ(rows.Add("ld\n\n\x1b[31mred\x1b[0m\t1\n"), "> world\n> \n> \x1b[31mred\x1b[0m\t1\n");
  EXPECT_EQ(rows.Add("windows\r\nno bar"), "> windows\n");
  EXPECT_THAT(rows.Drawn(), IsEmpty());
  EXPECT_EQ(rows.Finish(), "> no bar\n");
  EXPECT_EQ(rows.Finish(), "");
}

// A bar that is drawn for an hour is one row, and one line when it is finished.
TEST(LiveRowsTest, ABar) {
  TerminalRows rows("> ");
  EXPECT_EQ(rows.Add("begins\n"), "> begins\n");
  for (int i = 0; i < 1000; ++i) {
    const std::string state = absl::StrCat("\x1b[32m", i, "/1000\x1b[0m");
    EXPECT_EQ(rows.Add(absl::StrCat("\r", state)), "");
    EXPECT_THAT(rows.Drawn(), ElementsAre("> " + state));
  }
  EXPECT_EQ(rows.Add("\r1000/1000   \n"), "");
  EXPECT_EQ(rows.Add("ends\n"), "> 1000/1000\n> ends\n");
  EXPECT_THAT(rows.Drawn(), IsEmpty());
  // The carriage return may also come after the text.
  EXPECT_EQ(rows.Add("1%\r"), "");
  EXPECT_THAT(rows.Drawn(), ElementsAre("> 1%"));
  EXPECT_EQ(rows.Add("2%\r"), "");
  EXPECT_THAT(rows.Drawn(), ElementsAre("> 2%"));
  EXPECT_EQ(rows.Finish(), "> 2%\n");
}

TEST(LiveRowsTest, OneBarAfterAnother) {
  TerminalRows rows;
  std::string out;
  for (const char* name : {"a", "b", "c"}) {
    for (int i = 0; i < 3; ++i) out += rows.Add(absl::StrCat("\r", name, i));
    out += rows.Add("\n");
  }
  EXPECT_EQ(out, "a2\nb2\n");
  EXPECT_EQ(rows.Finish(), "c2\n");
}

// tqdm's output for nested loops: each text that moves the cursor is flushed by itself.
TEST(LiveRowsTest, ABarWithinABar_IsOneRowEachAndLeavesTheOuterOne) {
  TerminalRows rows;
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
  TerminalRows rows;
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
  TerminalRows rows;
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

// rich's output for a table of bars: it hides the cursor and clears the rows from the lowest
// upwards.
TEST(LiveRowsTest, RowsThatAreClearedAndDrawnAnew) {
  TerminalRows rows;
  EXPECT_EQ(rows.Add("\x1b[?25l"), "");
  for (int i = 0; i < 5; ++i) {
    if (i > 0) rows.Add("\r\x1b[2K\x1b[1A\x1b[2K");
    EXPECT_EQ(rows.Add(absl::StrCat("\x1b[35mone\x1b[0m ", i, "\ntwo ", i)), "");
    EXPECT_THAT(rows.Drawn(),
                ElementsAre(absl::StrCat("\x1b[35mone\x1b[0m ", i), absl::StrCat("two ", i)));
  }
  // The program prints a line above the bars.
  std::string out = rows.Add("\r\x1b[2K\x1b[1A\x1b[2Kprinted\none 5\ntwo 5");
  for (int i = 6; i < 9; ++i) {
    out += rows.Add(absl::StrCat("\r\x1b[2K\x1b[1A\x1b[2Kone ", i, "\ntwo ", i));
  }
  EXPECT_EQ(out, "printed\n");
  EXPECT_EQ(rows.Add("\n\x1b[?25h"), "");
  EXPECT_EQ(rows.Add("done\n"), "one 8\ntwo 8\ndone\n");
}

TEST(LiveRowsTest, SequencesMayComeInPieces) {
  TerminalRows rows;
  for (const char* bytes : {"\ra1", "\n", "\rb1", "\x1b", "[", "A", "\ra2", "\x1b[3", "2m!"}) {
    EXPECT_EQ(rows.Add(bytes), "");
  }
  EXPECT_THAT(rows.Drawn(), ElementsAre("a2\x1b[32m!", "b1"));
}

TEST(LiveRowsTest, WhatElseCommandsATerminalIsLeftOut) {
  TerminalRows rows;
  EXPECT_EQ(
      rows.Add("\x1b]0;title\x07me\x1b[2J\x1b[5;5H \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n"),
      "me link\n");
  EXPECT_EQ(rows.Add("|\b/\b-"), "");
  EXPECT_THAT(rows.Drawn(), ElementsAre("-"));
  // The model stays bounded, whatever a program writes.
  EXPECT_EQ(rows.Add(std::string(10000, '\b')), "");
  for (int i = 0; i < 10000; ++i) rows.Add("\x1b[999999A\x1b[31m");
  EXPECT_LE(rows.Drawn().size(), 1u);
  rows.Add("\x1b[999999Bx");
  EXPECT_LE(rows.Drawn().size(), 40u);
}

TEST(LiveRowsTest, ABarThatIsDoneStandsAboveWhatIsPrintedElsewhere) {
  TerminalRows rows;
  rows.Add("\r1/2\r2/2");
  EXPECT_EQ(rows.OnOtherStreamOutput(), "") << "it goes on";
  rows.Add("\n");
  EXPECT_EQ(rows.OnOtherStreamOutput(), "2/2\n");
  EXPECT_THAT(rows.Drawn(), IsEmpty());
}

TEST(LiveRowsTest, AfterDroppedBytes_SaysHowMany) {
  TerminalRows rows("> ");
  EXPECT_EQ(rows.Add("\r1/2"), "");
  EXPECT_EQ(rows.Add("on\n", 4096),
            "> 1/2\n> [4096 bytes left out here; the log file has them]\n> on\n");
}

TEST(LiveRowsTest, AnEndlessLineIsSplit) {
  TerminalRows rows;
  std::string out;
  for (int i = 0; i < 100; ++i) out += rows.Add(std::string(100000, 'x'));
  EXPECT_GE(out.size(), 10000000 - kMaxOutputLine);
  EXPECT_EQ(out.substr(kMaxOutputLine, kSplitMarker.size() + 1), absl::StrCat(kSplitMarker, "\n"));
}

}  // namespace
}  // namespace cadre::agent
