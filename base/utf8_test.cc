#include "base/utf8.h"

#include "gtest/gtest.h"

namespace cadre {
namespace {

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
