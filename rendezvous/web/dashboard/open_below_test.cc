#include "rendezvous/web/dashboard/open_below.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace cadre::web {
namespace {

class OpenBelowTest : public testing::Test {
 protected:
  OpenBelowTest() {
    std::filesystem::create_directories(root_ + "/a/b");
    std::ofstream(root_ + "/a/b/file") << "text";
  }
  // 0 or the error.
  int Opens(const std::string& relative) {
    const int fd = OpenBelow(root_, relative);
    if (fd < 0) return errno;
    close(fd);
    return 0;
  }
  const std::string root_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(OpenBelowTest, AFile) {
  EXPECT_EQ(Opens("a/b/file"), 0);
  EXPECT_EQ(Opens("a/b/none"), ENOENT);
  EXPECT_EQ(Opens("none/b/file"), ENOENT);
}

TEST_F(OpenBelowTest, NoLinkIsFollowed) {
  std::filesystem::create_symlink("b", root_ + "/a/other");
  std::filesystem::create_symlink("file", root_ + "/a/b/link");
  EXPECT_EQ(Opens("a/other/file"), ENOTDIR);
  EXPECT_EQ(Opens("a/b/link"), ELOOP);
  EXPECT_EQ(Opens("a/../a/b/file"), EINVAL);
}

TEST_F(OpenBelowTest, OnlyRegularFiles) {
  ASSERT_EQ(mkfifo((root_ + "/a/fifo").c_str(), 0600), 0);
  EXPECT_EQ(Opens("a/fifo"), EINVAL);
  EXPECT_EQ(Opens("a/b"), EINVAL);
  EXPECT_EQ(Opens(""), EINVAL);
}

}  // namespace
}  // namespace cadre::web
