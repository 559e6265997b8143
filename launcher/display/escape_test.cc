#include "launcher/display/escape.h"

#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(EscapeTest, ControlCharacters_CannotReachTheTerminal) {
  EXPECT_EQ(EscapeControl("a\x1b[31mb\r\n\t\x7f"), "a\\x1b[31mb\\x0d\\n\\t\\x7f");
  EXPECT_EQ(EscapeControl("\xc2\x9b"
                          "31m"),
            "\\x9b31m");
}

TEST(EscapeTest, Text_StaysAsItIs) { EXPECT_EQ(EscapeControl("Zürich 3/4"), "Zürich 3/4"); }

}  // namespace
}  // namespace cadre
