#include "base/user_directory.h"

#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::StartsWith;

class UserDirectoryTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(path_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(path_); }
  // Nothing can be made below it, not even by root.
  std::string File() const {
    const std::string file = path_ + "/file";
    std::ofstream(file) << "x";
    chmod(file.c_str(), 0700);
    return file;
  }

  std::string path_ = testing::TempDir() + "/user_XXXXXX";
};

TEST_F(UserDirectoryTest, WhereNoneCanBeMadeTheVariableToSetIsSaid) {
  setenv("XDG_RUNTIME_DIR", File().c_str(), 1);
  EXPECT_THAT(std::string(RuntimeDirectory().status().message()),
              AllOf(StartsWith("cannot make " + File() + "/cadre-"),
                    EndsWith("; set XDG_RUNTIME_DIR to a directory of yours")));
  setenv("HOME", File().c_str(), 1);
  EXPECT_THAT(std::string(HomeDirectory().status().message()),
              AllOf(StartsWith("cannot make " + File() + "/.cadre: "),
                    EndsWith("; set HOME to a directory of yours")));
}

TEST_F(UserDirectoryTest, WithoutHOMEThePasswordEntryHasIt) {
  const passwd* const entry = getpwuid(geteuid());
  ASSERT_NE(entry, nullptr);
  const std::string home = entry->pw_dir;
  setenv("HOME", path_.c_str(), 1);
  EXPECT_EQ(UserHome(), path_);
  for (const bool set : {true, false}) {
    if (set) setenv("HOME", "", 1);
    if (!set) unsetenv("HOME");
    EXPECT_EQ(UserHome(), home);
  }
  setenv("HOME", "no/path", 1);
  EXPECT_THAT(HomeDirectory(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Anybody may make /tmp/cadre-<uid> before the user does.
TEST_F(UserDirectoryTest, WhereAnotherUserMadeItFirstAnotherIsFoundByAll) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  const std::string home = path_ + "/home", shared = path_ + "/shared";
  ASSERT_EQ(mkdir(home.c_str(), 0700), 0);
  ASSERT_EQ(mkdir(shared.c_str(), 01777), 0);
  setenv("HOME", home.c_str(), 1);
  setenv("XDG_RUNTIME_DIR", shared.c_str(), 1);
  const std::string taken = shared + "/cadre-0";
  ASSERT_EQ(mkdir(taken.c_str(), 0700), 0);
  ASSERT_EQ(chown(taken.c_str(), 64123, -1), 0);
  EXPECT_EQ(FindUserDirectoryIn(shared), "");
  testing::internal::CaptureStderr();
  const auto instead = RuntimeDirectory();
  ASSERT_OK(instead);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              StartsWith("cadre: " + taken + " is not this user's; " + *instead));
  EXPECT_THAT(*instead, StartsWith(taken + "-"));
  EXPECT_EQ(RuntimeDirectory().value_or(""), *instead);
  EXPECT_EQ(FindUserDirectoryIn(shared), *instead);
  // A link of theirs, and nothing at home but what they might have made since.
  ASSERT_EQ(rmdir(taken.c_str()), 0);
  ASSERT_EQ(symlink(home.c_str(), taken.c_str()), 0);
  ASSERT_EQ(lchown(taken.c_str(), 64123, -1), 0);
  ASSERT_EQ(chown(instead->c_str(), 64123, -1), 0);
  const auto later = RuntimeDirectory();
  ASSERT_OK(later);
  EXPECT_NE(*later, *instead);
  EXPECT_EQ(FindUserDirectoryIn(shared), *later);
  // Without a home there is no place to name it in.
  setenv("HOME", File().c_str(), 1);
  EXPECT_THAT(RuntimeDirectory(), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(UserDirectoryTest, WhatIsNotThisUsersAloneIsRefused) {
  setenv("XDG_RUNTIME_DIR", path_.c_str(), 1);
  ASSERT_OK(RuntimeDirectory());
  ASSERT_EQ(chmod((*RuntimeDirectory()).c_str(), 0755), 0);
  EXPECT_THAT(RuntimeDirectory(),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       EndsWith("remove or rename it, or set XDG_RUNTIME_DIR to another directory "
                                "of yours")));
}

}  // namespace
}  // namespace cadre
