#include "agent/cluster/part_removal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/scoped_fd.h"
#include "base/status_matchers.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kOther = 64123;

class PartRemovalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(path_.data()), nullptr);
    ASSERT_EQ(chmod(path_.c_str(), 0711), 0);
    run_ = path_ + "/agent/part-1/run";
    ASSERT_TRUE(fs::create_directories(run_));
    ASSERT_EQ(chmod((path_ + "/agent").c_str(), 0711), 0);
    ASSERT_EQ(chmod((path_ + "/agent/part-1").c_str(), 0711), 0);
    std::ofstream(path_ + "/agent/part-1/token") << "secret";
    std::ofstream(path_ + "/mine") << "mine";
  }
  void TearDown() override { fs::remove_all(path_); }

  // Directories in one another, which no path is long enough for.
  void MakeDeep(int levels, uid_t owner) const {
    ScopedFd at(open(run_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (int i = 0; i < levels; ++i) {
      ASSERT_EQ(mkdirat(at.get(), "deep", 0700), 0);
      const ScopedFd file(openat(at.get(), "file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
      ScopedFd next(openat(at.get(), "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      ASSERT_EQ(fchown(next.get(), owner, -1), 0);
      at = std::move(next);
    }
    ASSERT_EQ(chown(run_.c_str(), owner, -1), 0);
  }

  std::string path_ = "/tmp/cadre_removal_XXXXXX";
  std::string run_;
};

TEST_F(PartRemovalTest, NoDepthIsTooDeepForItsDescriptors) {
  MakeDeep(1500, geteuid());
  rlimit before, few;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  few = before;
  few.rlim_cur = 32;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_TRUE(RemoveAsOwners(path_ + "/agent"));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(fs::exists(path_ + "/agent"));
}

TEST_F(PartRemovalTest, WhatAUserHasClosedOrLinkedIsNoObstacleAndLeadsNowhere) {
  if (geteuid() != 0) GTEST_SKIP() << "only root removes others' files";
  MakeDeep(3, kOther);
  ASSERT_TRUE(fs::create_directories(run_ + "/closed/below"));
  std::ofstream(run_ + "/closed/below/file") << "x";
  fs::create_symlink(path_ + "/mine", run_ + "/link");
  fs::create_directory_symlink(path_, run_ + "/closed/below/links");
  for (const auto& entry : fs::recursive_directory_iterator(run_)) {
    ASSERT_EQ(lchown(entry.path().c_str(), kOther, -1), 0);
  }
  for (const char* name : {"/closed/below", "/closed", ""}) {
    ASSERT_EQ(chmod((run_ + name).c_str(), 0), 0);
  }
  EXPECT_TRUE(RemoveAsOwners(path_ + "/agent"));
  EXPECT_FALSE(fs::exists(path_ + "/agent"));
  EXPECT_TRUE(fs::exists(path_ + "/mine"));
}

// With root's rights it could be made to remove anything.
TEST_F(PartRemovalTest, ItRemovesWithTheRightsOfTheUserAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "only root removes others' files";
  ASSERT_TRUE(fs::create_directories(run_ + "/roots/full"));
  std::ofstream(run_ + "/roots/full/file") << "root's";
  ASSERT_EQ(chown(run_.c_str(), kOther, -1), 0);
  EXPECT_FALSE(RemoveAsOwners(path_ + "/agent"));
  EXPECT_TRUE(fs::exists(run_ + "/roots/full/file"));
}

}  // namespace
}  // namespace cadre::agent
