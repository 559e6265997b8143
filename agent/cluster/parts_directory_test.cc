#include "agent/cluster/parts_directory.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class PartsDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    parent_ = testing::TempDir() + "/parent_XXXXXX";
    ASSERT_NE(mkdtemp(parent_.data()), nullptr);
  }
  std::set<std::string> Entries() const {
    std::set<std::string> entries;
    for (const auto& entry : fs::directory_iterator(parent_)) entries.insert(entry.path());
    return entries;
  }
  // Another agent that makes its directory, fills it and is killed.
  void LeaveOne() {
    const pid_t child = fork();
    if (child == 0) {
      const auto directory = PartsDirectory::Make(parent_);
      if (!directory.ok()) _exit(1);
      fs::create_directory((*directory)->path() + "/part-1");
      std::ofstream((*directory)->path() + "/part-1/token") << "secret";
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  }

  std::string parent_;
};

TEST_F(PartsDirectoryTest, OthersMayPassThrough_AndItGoesWithTheObject) {
  auto directory = PartsDirectory::Make(parent_);
  ASSERT_THAT(directory, IsOk());
  struct stat info = {};
  ASSERT_EQ(stat((*directory)->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0711u);
  std::ofstream((*directory)->path() + "/file") << "content";
  directory->reset();
  EXPECT_THAT(Entries(), ElementsAre());
}

TEST_F(PartsDirectoryTest, WhatAKilledAgentLeftIsRemovedByTheNext) {
  LeaveOne();
  ASSERT_EQ(Entries().size(), 1u);
  const auto next = PartsDirectory::Make(parent_);
  ASSERT_THAT(next, IsOk());
  EXPECT_THAT(Entries(), ElementsAre((*next)->path()));
}

TEST_F(PartsDirectoryTest, OfAgentsThatLiveNothingIsTaken) {
  const auto first = PartsDirectory::Make(parent_), second = PartsDirectory::Make(parent_);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(Entries(), UnorderedElementsAre((*first)->path(), (*second)->path()));
}

TEST_F(PartsDirectoryTest, NothingElseIsTaken) {
  const std::string file = parent_ + "/cadre-agent-file", link = parent_ + "/cadre-agent-link";
  const std::string other = parent_ + "/cadre-other", target = parent_ + "/target";
  std::ofstream{file} << "content";
  fs::create_directories(target);
  fs::create_directories(other);
  fs::create_directory_symlink(target, link);
  const auto directory = PartsDirectory::Make(parent_);
  ASSERT_THAT(directory, IsOk());
  EXPECT_THAT(Entries(), UnorderedElementsAre(file, link, other, target, (*directory)->path()));
}

TEST_F(PartsDirectoryTest, AnotherUsersIsLeft) {
  const std::string others = parent_ + "/cadre-agent-abcdef";
  fs::create_directories(others);
  if (chown(others.c_str(), 65534, 65534) != 0) GTEST_SKIP() << "only root can give one away";
  ASSERT_THAT(PartsDirectory::Make(parent_), IsOk());
  EXPECT_THAT(Entries(), Contains(others));
}

TEST_F(PartsDirectoryTest, WhereNothingCanBeMadeThatIsSaid) {
  EXPECT_THAT(PartsDirectory::Make(parent_ + "/none"), Not(IsOk()));
}

}  // namespace
}  // namespace cadre::agent
