#include "base/text.h"

#include <cerrno>

#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(TextTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(OneLine("a\nb\tc\x1b[31m\x7f", 100), "a\\nb\\tc\\x1b[31m\\x7f");
  // U+009B starts an escape sequence on some terminals; other letters stay.
  EXPECT_EQ(OneLine("\xc2\x9b\xc3\xa9", 100), "\\x9b\xc3\xa9");
  EXPECT_TRUE(HasControlCharacters("a\nb"));
  EXPECT_TRUE(HasControlCharacters("\xc2\x9b"));
  EXPECT_FALSE(HasControlCharacters("n\xc3\xa9t-1"));
}

TEST(TextTest, LongTextIsCutAtACharacter) {
  EXPECT_EQ(Shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(Shortened("abcdefg", 6), "abc...");
  EXPECT_EQ(Shortened("ab\xc3\xa9"
                      "defg",
                      6),
            "ab...");
  EXPECT_EQ(OneLine(std::string(1000, '\n'), 10), "\\n\\n\\n\\...");
}

TEST(TextTest, DurationsAreShort) {
  EXPECT_EQ(ShortDuration(absl::Minutes(10)), "10m");
  EXPECT_EQ(ShortDuration(absl::Seconds(598)), "9m58s");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(597001)), "9m58s");
  EXPECT_EQ(ShortDuration(absl::Minutes(90)), "1h30m");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(250)), "250ms");
  EXPECT_EQ(ShortDuration(-absl::Seconds(1)), "0s");
  EXPECT_EQ(ShortDuration(absl::InfiniteDuration()), "forever");
}

TEST(TextTest, SizesAreInGibibytesWhereThatIsShort) {
  EXPECT_EQ(SizeText(uint64_t{9} << 30), "9 GiB");
  EXPECT_EQ(SizeText(uint64_t{251} << 28), "62.75 GiB");
  EXPECT_EQ(SizeText(uint64_t{1} << 46), "65536 GiB");
  EXPECT_EQ(SizeText(uint64_t{1100} << 20), "1100 MiB");
  EXPECT_EQ(SizeText(0), "0 GiB");
}

TEST(TextTest, ListsNameThreeAndCountTheRest) {
  EXPECT_EQ(FirstFew({"a"}, 1), "a");
  EXPECT_EQ(FirstFew({"a", "b", "c"}, 3), "a, b, c");
  EXPECT_EQ(FirstFew({"a", "b", "c", "d"}, 7), "a, b, c and 4 more");
  EXPECT_EQ(FirstFew({}, 2), "2 more");
  EXPECT_EQ(Count(1, "node"), "1 node");
  EXPECT_EQ(Count(0, "node"), "0 nodes");
}

TEST(TextTest, SignalsAndErrorsHaveNames) {
  EXPECT_EQ(SignalName(9), "SIGKILL");
  EXPECT_EQ(SignalName(64), "signal 64");
  EXPECT_EQ(SignalText(9), "signal 9 (SIGKILL)");
  EXPECT_EQ(SignalText(64), "signal 64");
  EXPECT_EQ(ErrnoText(ENOENT), "No such file or directory");
  EXPECT_EQ(ErrnoText(9999), "error 9999");
}

TEST(Utf8, CharactersOfEveryLength) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("a\xc3\xa9\xe2\x96\x88\xf0\x9f\x98\x80"));
  EXPECT_EQ(Utf8CharacterSize("\xe2\x96\x88..."), 3u);
}

TEST(Utf8, WhatIsNoCharacter) {
  EXPECT_FALSE(IsUtf8("caf\xe9"));
  EXPECT_FALSE(IsUtf8("\xe2\x96"));          // cut
  EXPECT_FALSE(IsUtf8("\xc0\xaf"));          // longer than needed
  EXPECT_FALSE(IsUtf8("\xed\xa0\x80"));      // half of a pair
  EXPECT_FALSE(IsUtf8("\xf4\x90\x80\x80"));  // past the last
}

TEST(Utf8, InvalidBytesAreReplacedOneByOne) {
  EXPECT_EQ(ReplaceInvalidUtf8("caf\xe9!"), "caf\xef\xbf\xbd!");
  EXPECT_EQ(ReplaceInvalidUtf8("\x96\x88\xe2\x96\x88"), "\xef\xbf\xbd\xef\xbf\xbd\xe2\x96\x88");
  EXPECT_EQ(ReplaceInvalidUtf8("plain"), "plain");
}

}  // namespace

}  // namespace cadre
