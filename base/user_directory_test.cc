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
