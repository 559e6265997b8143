// Tests what other users can do in the places in which this user's files lie. Much of it needs
// root, which can make files of other users, and is skipped otherwise.
#include "base/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/user_directory.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

constexpr uid_t kOther = 64123, kThird = 64124;

std::string Content(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

class OwnFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(path_.data()), nullptr);
    // Everybody may make files there, as in /tmp.
    shared_ = path_ + "/shared";
    ASSERT_TRUE(fs::create_directory(shared_));
    ASSERT_EQ(chmod(shared_.c_str(), 01777), 0);
    std::ofstream(path_ + "/profile") << "mine\n";
  }
  void TearDown() override { fs::remove_all(path_); }

  std::string Directory(const std::string& name, uid_t owner = geteuid(), mode_t mode = 0755) {
    const std::string path = shared_ + "/" + name;
    EXPECT_TRUE(fs::create_directory(path));
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_EQ(chown(path.c_str(), owner, -1), 0);
    return path;
  }
  std::string Link(const std::string& to, const std::string& path, uid_t owner) {
    EXPECT_EQ(symlink(to.c_str(), path.c_str()), 0);
    EXPECT_EQ(lchown(path.c_str(), owner, -1), 0);
    return path;
  }
  static absl::Status Append(const std::string& path) {
    const auto file = OpenOwnFile(path, O_WRONLY | O_APPEND | O_CREAT);
    if (!file.ok()) return file.status();
    EXPECT_EQ(write(file->get(), "more\n", 5), 5);
    return absl::OkStatus();
  }
  static absl::Status AppendAnywhere(const std::string& path) {
    const auto file = OpenFileToWrite(path, O_WRONLY | O_APPEND | O_CREAT);
    if (!file.ok()) return file.status();
    EXPECT_EQ(write(file->get(), "more\n", 5), 5);
    return absl::OkStatus();
  }
  static auto IsRefused(const std::string& why) {
    return StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(why));
  }

  // Other users may pass through this directory.
  std::string path_ = "/tmp/cadre_own_files_XXXXXX";
  std::string shared_;
};

class OthersFilesTest : public OwnFilesTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
    OwnFilesTest::SetUp();
  }
};

TEST_F(OwnFilesTest, WhatIsMissingIsMadeAndNeverOpenToEverybody) {
  const mode_t before = umask(0);
  ASSERT_OK(MakeOwnDirectory(shared_ + "/new/logs", "job/run"));
  umask(before);
  struct stat info;
  ASSERT_EQ(stat((shared_ + "/new/logs/job/run").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0775u);
  ASSERT_OK(MakeOwnDirectory(shared_ + "/new/logs", "job/run"));
  ASSERT_OK(Append(shared_ + "/new/logs/job/run/log"));
  ASSERT_OK(Append(shared_ + "/new/logs/job/run/log"));
  EXPECT_EQ(Content(shared_ + "/new/logs/job/run/log"), "more\nmore\n");
}

TEST_F(OwnFilesTest, AnOwnLinkIsFollowedToADirectoryAndNotToAFile) {
  const std::string real = Directory("real");
  const std::string link = Link("real", shared_ + "/link", geteuid());
  ASSERT_OK(Append(link + "/../link/./log"));
  EXPECT_EQ(Content(real + "/log"), "more\n");
  Link(path_ + "/profile", real + "/err", geteuid());
  EXPECT_THAT(Append(link + "/err"), IsRefused("is a symbolic link: remove it"));
  EXPECT_EQ(errno, EPERM);
  Link("round", shared_ + "/round", geteuid());
  EXPECT_FALSE(OpenOwnDirectory(shared_ + "/round").ok());
  Link("../nowhere", shared_ + "/unmounted", geteuid());
  EXPECT_THAT(MakeDirectories(shared_ + "/unmounted/below"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/unmounted is a link to ../nowhere, which is not there")));
  EXPECT_FALSE(fs::exists(path_ + "/nowhere"));
}

TEST_F(OwnFilesTest, ASecondNameAFifoAndADeviceAreNoPlaceToWriteTo) {
  const std::string job = Directory("job");
  ASSERT_EQ(link((path_ + "/profile").c_str(), (job + "/hard").c_str()), 0);
  EXPECT_THAT(Append(job + "/hard"), IsRefused("hard link"));
  EXPECT_THAT(OpenOwnFile(job + "/hard", O_RDWR | O_TRUNC), IsRefused("hard link"));
  EXPECT_EQ(Content(path_ + "/profile"), "mine\n");
  EXPECT_OK(OpenOwnFile(job + "/hard", O_RDONLY));
  ASSERT_EQ(mkfifo((job + "/fifo").c_str(), 0600), 0);
  EXPECT_FALSE(Append(job + "/fifo").ok());
  EXPECT_THAT(OpenOwnFile(job + "/fifo", O_RDONLY),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no regular file")));
  EXPECT_THAT(OpenFileToRead(job + "/fifo"), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(OpenFileToRead("/dev/zero"), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(OpenOwnFile(job + "/none", O_RDONLY), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(OwnFilesTest, WhereEverybodyMayWriteNothingIsOwn) {
  for (const mode_t mode : {0777, 01777}) {
    const std::string open = Directory(absl::StrCat("open", mode), geteuid(), mode);
    EXPECT_THAT(OpenOwnDirectory(open), IsRefused("everybody may write to directory " + open));
    EXPECT_THAT(Append(open + "/log"), IsRefused("chmod o-w"));
    // A directory that holds own directories may be writable by everybody.
    EXPECT_OK(MakeOwnDirectory(open, "job"));
  }
  // A project's folder may be writable by its group, which is trusted with names.
  EXPECT_OK(OpenOwnDirectory(Directory("project", geteuid(), 02775)));
}

TEST_F(OwnFilesTest, AFileThatTheUserNamedMayLieAnywhere) {
  ASSERT_OK(AppendAnywhere(shared_ + "/out"));
  ASSERT_OK(AppendAnywhere(shared_ + "/out"));
  EXPECT_EQ(Content(shared_ + "/out"), "more\nmore\n");
  Link("out", shared_ + "/link", geteuid());
  ASSERT_OK(AppendAnywhere(shared_ + "/link"));
  EXPECT_EQ(Content(shared_ + "/out"), "more\nmore\nmore\n");
  EXPECT_OK(AppendAnywhere("/dev/null"));
  EXPECT_THAT(AppendAnywhere(shared_).message(), HasSubstr("Is a directory"));
  EXPECT_THAT(AppendAnywhere(shared_ + "/none/out"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(shared_ + "/none")));
  EXPECT_FALSE(fs::exists(shared_ + "/none"));
  Link("nowhere", shared_ + "/dangling", geteuid());
  EXPECT_THAT(AppendAnywhere(shared_ + "/dangling"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_EQ(mkfifo((shared_ + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(AppendAnywhere(shared_ + "/fifo"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("neither a file")));
}

TEST_F(OthersFilesTest, AFileThatTheUserNamedIsNotReachedThroughOthersLinks) {
  Link(path_ + "/profile", shared_ + "/secret", kOther);
  EXPECT_THAT(AppendAnywhere(shared_ + "/secret"), IsRefused("is a link to"));
  EXPECT_EQ(Content(path_ + "/profile"), "mine\n");
  const std::string theirs = Directory("theirs", kOther, 0777);
  EXPECT_OK(AppendAnywhere(theirs + "/out"));
}

// Fault (access): Another user has made a job's directory in a shared log directory first -> The
// job is refused, and the error names the owner
TEST_F(OthersFilesTest, AJobsDirectoryThatAnotherMadeFirstIsRefused) {
  const std::string job = Directory("job", kOther, 0777);
  Directory("job/generation_1", kOther, 0777);
  Link(path_ + "/profile", job + "/generation_1/stdout.log", kOther);
  EXPECT_THAT(MakeOwnDirectory(shared_, "job/generation_1"),
              IsRefused(absl::StrCat("directory ", job, " belongs to user ", kOther)));
  EXPECT_THAT(Append(job + "/generation_1/stdout.log"), IsRefused("belongs to user"));
  EXPECT_EQ(Content(path_ + "/profile"), "mine\n");
  // A part of the path must be own too: here the last directory is own and the one above it is not.
  Directory("job/own");
  EXPECT_THAT(MakeOwnDirectory(shared_, "job/own"), IsRefused(job + " belongs"));
}

// Fault (access): Another user has put symbolic or hard links into a shared log directory ->
// Nothing is written through them
TEST_F(OthersFilesTest, OthersLinksAreNotFollowedWhereverTheyAre) {
  const std::string home = Directory("home");
  const std::string theirs = Directory("theirs", kOther, 0755);
  for (const std::string& link : {shared_ + "/link", theirs + "/link"}) {
    Link(home, link, kOther);
    EXPECT_THAT(Append(link + "/stdout.log"), IsRefused(link + " is a link to " + home));
    EXPECT_THAT(OpenOwnDirectory(link), IsRefused("name the place itself"));
    EXPECT_THAT(MakeOwnDirectory(link, "job"), IsRefused("is a link"));
  }
  EXPECT_TRUE(fs::is_empty(home));
  // A directory of another user above an own one is no danger.
  Directory("theirs/mine");
  EXPECT_OK(Append(theirs + "/mine/log"));
}

TEST_F(OthersFilesTest, AFileThatAnotherPutThereIsNotWrittenToNorRead) {
  const std::string job = Directory("job", geteuid(), 02775);
  std::ofstream(job + "/theirs") << "evil";
  ASSERT_EQ(chown((job + "/theirs").c_str(), kOther, -1), 0);
  EXPECT_THAT(Append(job + "/theirs"), IsRefused("belongs to user 64123: remove it"));
  EXPECT_THAT(OpenOwnFile(job + "/theirs", O_RDONLY), IsRefused("belongs to user"));
}

TEST_F(OthersFilesTest, WhoReadsFollowsOthersLinksToTheirOwnFilesAlone) {
  const std::string job = Directory("job", kOther, 0755);
  std::ofstream(job + "/log") << "theirs";
  ASSERT_EQ(chown((job + "/log").c_str(), kOther, -1), 0);
  EXPECT_OK(OpenFileToRead(job + "/log"));
  Link("log", job + "/again", kOther);
  EXPECT_OK(OpenFileToRead(job + "/again"));
  Link(path_ + "/profile", job + "/secret", kOther);
  EXPECT_THAT(OpenFileToRead(job + "/secret"), IsRefused("made, to a file of user 0"));
  Link("/proc/self/environ", job + "/environ", kOther);
  EXPECT_THAT(OpenFileToRead(job + "/environ"), IsRefused("environ"));
  // The second link leads through a link of a third user.
  Link("log", job + "/thirds", kThird);
  Link("thirds", job + "/both", kOther);
  EXPECT_THAT(OpenFileToRead(job + "/both"), IsRefused("is a link"));
}

TEST_F(OthersFilesTest, WithoutRootItIsTheSame) {
  const std::string job = Directory("job", kOther, 0755), root = Directory("roots", 0, 0755);
  ASSERT_EQ(chmod(path_.c_str(), 0755), 0);
  Link("job", shared_ + "/by_root", 0);
  Link("job", shared_ + "/by_third", kThird);
  const std::string third = Directory("third", kThird, 0777);
  ASSERT_EQ(seteuid(kOther), 0);
  const absl::Status own = Append(job + "/log"), by_root = Append(shared_ + "/by_root/log");
  const absl::Status by_third = Append(shared_ + "/by_third/log");
  const absl::Status in_third = Append(third + "/log"), in_roots = Append(root + "/log");
  const absl::Status opened = OpenOwnDirectory(root).status();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_OK(own);
  EXPECT_OK(by_root);
  EXPECT_THAT(by_third, IsRefused("is a link to job that user 64124 made"));
  EXPECT_THAT(in_third, IsRefused("belongs to user 64124"));
  EXPECT_THAT(in_roots, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("cannot open")));
  EXPECT_OK(opened);
}

TEST(UserOfFuseTest, IsReadFromTheListOfMounts) {
  const std::string mounts =
      "24 1 8:1 / / rw - ext4 /dev/sda1 rw,user_id=7\n"
      "36 24 0:52 / /mnt/a\\040b rw,nosuid shared:1 - fuse.sshfs h: rw,user_id=1000,group_id=5\n"
      "37 24 0:53 / /mnt/c rw - fuse /dev/fuse rw,user_id=0,group_id=0,allow_other\n"
      "broken\n";
  EXPECT_EQ(UserOfFuse(mounts, makedev(0, 52)), 1000);
  EXPECT_EQ(UserOfFuse(mounts, makedev(0, 53)), 0);
  EXPECT_EQ(UserOfFuse(mounts, makedev(8, 1)), -1);
  EXPECT_EQ(UserOfFuse(mounts, makedev(0, 99)), -1);
}

class UserDirectoryTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(path_.data()), nullptr); }
  void TearDown() override {
    std::filesystem::remove_all(path_);
    for (const auto& [name, value] : before_) {
      if (value.has_value()) setenv(name, value->c_str(), 1);
      if (!value.has_value()) unsetenv(name);
    }
  }
  static std::optional<std::string> Variable(const char* name) {
    const char* const value = getenv(name);
    return value == nullptr ? std::nullopt : std::make_optional<std::string>(value);
  }
  // Nothing can be created below a file, not even by root.
  std::string File() const {
    const std::string file = path_ + "/file";
    std::ofstream(file) << "x";
    chmod(file.c_str(), 0700);
    return file;
  }

  std::string path_ = testing::TempDir() + "/user_XXXXXX";
  // The values to restore after a test changed them.
  const std::map<const char*, std::optional<std::string>> before_ = {
      {"HOME", Variable("HOME")}, {"XDG_RUNTIME_DIR", Variable("XDG_RUNTIME_DIR")}};
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

// Any user can make /tmp/cadre-<uid> before its user does.
//
// Fault (access): Another user has made `/tmp/cadre-UID` -> A directory with a random name is used,
// which all processes of the user find
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
              StartsWith("cadre: " + taken + " belongs to another user, so " + *instead));
  EXPECT_THAT(*instead, StartsWith(taken + "-"));
  EXPECT_EQ(RuntimeDirectory().value_or(""), *instead);
  EXPECT_EQ(FindUserDirectoryIn(shared), *instead);
  // The other user has put a link in its place, and the recorded directory may have been made by
  // them.
  ASSERT_EQ(rmdir(taken.c_str()), 0);
  ASSERT_EQ(symlink(home.c_str(), taken.c_str()), 0);
  ASSERT_EQ(lchown(taken.c_str(), 64123, -1), 0);
  ASSERT_EQ(chown(instead->c_str(), 64123, -1), 0);
  const auto later = RuntimeDirectory();
  ASSERT_OK(later);
  EXPECT_NE(*later, *instead);
  EXPECT_EQ(FindUserDirectoryIn(shared), *later);
  // The name cannot be recorded if the home directory is missing.
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
