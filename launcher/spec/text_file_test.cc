#include "launcher/spec/text_file.h"

#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

TEST(TextFileTest, IsReadWhole) {
  const std::string path = absl::StrCat(testing::TempDir(), "/whole");
  const std::string text = absl::StrCat("a: b\n", std::string(1, '\0'), "c");
  std::ofstream(path) << text;
  EXPECT_EQ(ReadTextFile(path, 100).value(), text);
  EXPECT_EQ(ReadTextFile(path, text.size()).value(), text);
  EXPECT_THAT(ReadTextFile(path, text.size() - 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 6")));
}

TEST(TextFileTest, AlsoALongOne) {
  const std::string path = absl::StrCat(testing::TempDir(), "/long");
  std::string text;
  for (int i = 0; text.size() < 1000000; ++i) absl::StrAppend(&text, i, "\n");
  std::ofstream(path) << text;
  EXPECT_EQ(ReadTextFile(path, size_t{1} << 30).value(), text);
  EXPECT_EQ(ReadTextFile(path, text.size()).value(), text);
  EXPECT_THAT(ReadTextFile(path, text.size() - 1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TextFileTest, WhatIsNoFile) {
  EXPECT_THAT(ReadTextFile("/nowhere", 100),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere: cannot be read")));
  EXPECT_THAT(ReadTextFile("/", 100),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
  const std::string pipe = absl::StrCat(testing::TempDir(), "/pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ReadTextFile(pipe, 100), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre::launcher
