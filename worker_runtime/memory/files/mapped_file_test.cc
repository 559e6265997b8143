#include "worker_runtime/memory/files/mapped_file.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "base/status_matchers.h"

namespace cadre::memory {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() {
    std::string pattern = "/dev/shm/mapped_file_test_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
  }
  ~MappedFileTest() override { std::filesystem::remove_all(path_); }

  std::string path_;
};

TEST_F(MappedFileTest, WhatIsWrittenIsReadFromAnotherMapping) {
  const auto written = MappedFile::Writable(path_ + "/file", 10000);
  ASSERT_OK(written);
  std::memcpy(written->data(), "state", 6);
  const auto read = MappedFile::Readable(path_ + "/file");
  ASSERT_OK(read);
  EXPECT_EQ(read->size(), 10000);
  EXPECT_STREQ(read->data(), "state");
}

TEST_F(MappedFileTest, AFileThatIsLongEnoughStays) {
  ASSERT_OK(MappedFile::Writable(path_ + "/file", 10000));
  const auto again = MappedFile::Writable(path_ + "/file", 10);
  ASSERT_OK(again);
  EXPECT_EQ(again->size(), 10000);
}

TEST_F(MappedFileTest, MoreThanThereIsMemory_SaysHowMuchIsFreeAndGivesAllBack) {
  ASSERT_OK(MappedFile::Writable(path_ + "/file", 10000));
  const auto free = std::filesystem::space(path_).available;
  const auto written = MappedFile::Writable(path_ + "/file", size_t{1} << 50);
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("bytes are free")));
  EXPECT_EQ(std::filesystem::file_size(path_ + "/file"), 10000);
  EXPECT_GT(std::filesystem::space(path_).available, free / 2);
}

TEST_F(MappedFileTest, WhatIsMissing) {
  EXPECT_THAT(MappedFile::Readable(path_ + "/none"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace cadre::memory
