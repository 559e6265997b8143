#include "launcher/slurm/column_format.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

// The prefix, then "field/width/suffix" for each column, with a '.' in front of one to the right.
std::string Text(const ColumnFormat& format) {
  std::string text = format.prefix;
  for (const ColumnOfFormat& column : format.columns) {
    absl::StrAppend(&text, "[", column.right ? "." : "", column.field, "/", column.width, "/",
                    column.suffix, "]");
  }
  return text;
}

TEST(ColumnFormatTest, Letters) {
  EXPECT_EQ(Text(ParseLetterFormat("%.18i %9P|%j")), "[.i/18/ ][P/9/|][j/0/]");
  EXPECT_EQ(Text(ParseLetterFormat("id=%A!")), "id=[A/0/!]");
  EXPECT_EQ(Text(ParseLetterFormat("none")), "none");
  EXPECT_EQ(Text(ParseLetterFormat("%")), "[/0/]");
  EXPECT_EQ(Text(ParseLetterFormat("%99999999999i")), "[i/10000/]");
}

TEST(ColumnFormatTest, Names) {
  EXPECT_EQ(Text(ParseNameFormat("JobID:.18 ,State, Name:0")), "[.jobid/18/ ][state/20/][name/0/]");
  EXPECT_EQ(Text(ParseNameFormat("JobID:5|,State:")), "[jobid/5/|][state/20/]");
}

TEST(ColumnFormatTest, Fields) {
  EXPECT_EQ(Field("abc", 5, true), "  abc");
  EXPECT_EQ(Field("abc", 5, false), "abc  ");
  EXPECT_EQ(Field("abcdef", 3, true), "abc");
  EXPECT_EQ(Field("abcdef", 3, false, false), "abcdef");
  EXPECT_EQ(Field("abc", 0, false), "abc");
}

}  // namespace
}  // namespace cadre::launcher
