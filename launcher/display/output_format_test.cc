#include "launcher/display/output_format.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/failure.pb.h"

namespace cadre::launcher {
namespace {

TEST(TerminalLineTest, TabsAndColoursStay_AndEndWithTheLine) {
  EXPECT_EQ(TerminalLine("a\tZürich\r"), "a\tZürich");
  EXPECT_EQ(TerminalLine("\x1b[1;31mred\x1b[0m plain"), "\x1b[1;31mred\x1b[0m plain");
  EXPECT_EQ(TerminalLine("\x1b[38:5:9mred"), "\x1b[38:5:9mred\x1b[0m");
  EXPECT_EQ(TerminalLine(""), "");
}

TEST(TerminalLineTest, OtherControlCharactersAreShown) {
  // A title, the clipboard, the cursor, the clearing of the screen, a colour without its end.
  EXPECT_EQ(TerminalLine("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(TerminalLine("\x1b]52;c;cm0=\x07"), "\\x1b]52;c;cm0=\\x07");
  EXPECT_EQ(TerminalLine("\x1b[2J\x1b[1;1H"), "\\x1b[2J\\x1b[1;1H");
  EXPECT_EQ(TerminalLine("\x1b[31"), "\\x1b[31");
  EXPECT_EQ(TerminalLine("\xc2\x9b"
                         "31m"),
            "\\x9b31m");
  // The 8-bit form, which some terminals obey.
  EXPECT_EQ(TerminalLine("\x9b"
                         "31m"),
            "\\x9b31m");
  EXPECT_EQ(TerminalLine(std::string("a\0b", 3)), "a\\x00b");
}

TEST(TerminalLineTest, OfALineThatIsOverwrittenTheLastState) {
  EXPECT_EQ(TerminalLine("\r10%\r\x1b[32m20%\x1b[0m\r"), "\x1b[32m20%\x1b[0m");
  EXPECT_EQ(TerminalLine("windows\r"), "windows");
  EXPECT_EQ(TerminalLine("\r"), "");
}

TEST(TerminalLineTest, OfSoManyColumns) {
  EXPECT_EQ(TerminalLine("\x1b[32m 50%|\u2588\u2588\u2588  |\x1b[0m 5/10", 8),
            "\x1b[32m 50%|\u2588\u2588\u2588\x1b[0m");
  EXPECT_EQ(TerminalLine("ab\x07"
                         "cd",
                         4),
            "ab");
  EXPECT_EQ(TerminalLine("ab\tcd", 10), "ab\t");
  EXPECT_EQ(TerminalLine("abc", 0), "");
  EXPECT_EQ(TerminalLine("\u8bad\u7ec3 50%", 4), "\u8bad\u7ec3");
  EXPECT_EQ(TerminalLine("\u8bad\u7ec3 50%", 6), "\u8bad\u7ec3 5");
  EXPECT_EQ(TerminalLine("\U0001f525 hot", 3), "\U0001f525 ");
  EXPECT_EQ(TerminalLine("e\u0301t\u00e9", 2), "e\u0301t");
}

TEST(TerminalLineTest, ColumnsAreWhatALineTakes) {
  EXPECT_EQ(Columns(""), 0u);
  EXPECT_EQ(Columns("\x1b[32m50%|\u2588\x1b[0m"), 5u);
  EXPECT_EQ(Columns("\u8bad\u7ec3"), 4u);
  EXPECT_EQ(Columns("a\tb"), 10u);
}

TEST(TableTest, Columns_AreAsWideAsTheirWidestCell) {
  EXPECT_EQ(FormatTable({"JOB", "PHASE"}, {{"mnist-long", "running"}, {"a", ""}}),
            "JOB         PHASE\nmnist-long  running\na\n");
}

TEST(TableTest, Cells_AreEscaped) { EXPECT_EQ(FormatTable({"A"}, {{"x\ny"}}), "A\nx\\ny\n"); }

TEST(JsonTextTest, Zeros_AreWrittenOut) {
  v1::Failure failure;
  failure.set_node("node1");
  failure.mutable_exit();
  const std::string json = JsonText(failure);
  EXPECT_THAT(json, ::testing::HasSubstr("\"rank\":0"));
  EXPECT_THAT(json, ::testing::HasSubstr("\"exit_code\":0"));
  EXPECT_THAT(json, ::testing::HasSubstr("\"node\":\"node1\""));
}

}  // namespace
}  // namespace cadre::launcher
