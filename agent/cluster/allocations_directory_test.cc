#include "agent/cluster/allocations_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "agent/cluster/allocation_launcher.h"
#include "agent/cluster/users.h"
#include "agent/run_files.h"
#include "base/scoped_fd.h"
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
  // Simulates another agent that makes its directory, fills it and is killed.
  void LeaveOne() {
    const pid_t child = fork();
    if (child == 0) {
      const auto directory = AllocationsDirectory::Make(parent_);
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
  auto directory = AllocationsDirectory::Make(parent_);
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
  const auto next = AllocationsDirectory::Make(parent_);
  ASSERT_THAT(next, IsOk());
  EXPECT_THAT(Entries(), ElementsAre((*next)->path()));
}

TEST_F(PartsDirectoryTest, OfAgentsThatLiveNothingIsTaken) {
  const auto first = AllocationsDirectory::Make(parent_),
             second = AllocationsDirectory::Make(parent_);
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
  const auto directory = AllocationsDirectory::Make(parent_);
  ASSERT_THAT(directory, IsOk());
  EXPECT_THAT(Entries(), UnorderedElementsAre(file, link, other, target, (*directory)->path()));
}

TEST_F(PartsDirectoryTest, AnotherUsersIsLeft) {
  const std::string others = parent_ + "/cadre-agent-abcdef";
  fs::create_directories(others);
  if (chown(others.c_str(), 65534, 65534) != 0) GTEST_SKIP() << "only root can give one away";
  ASSERT_THAT(AllocationsDirectory::Make(parent_), IsOk());
  EXPECT_THAT(Entries(), Contains(others));
}

TEST_F(PartsDirectoryTest, WhereNothingCanBeMadeThatIsSaid) {
  EXPECT_THAT(AllocationsDirectory::Make(parent_ + "/none"), Not(IsOk()));
}

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

  // Makes nested directories, so deep that the path of the last is longer than any path may be.
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

// Fault (queue): A job leaves directories of any depth on a node -> They are removed with three
// descriptors
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

// An agent that runs as root removes files with the rights of the job's user: otherwise the user
// could swap names and make it remove any file.
TEST_F(PartRemovalTest, ItRemovesWithTheRightsOfTheUserAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "only root removes others' files";
  ASSERT_TRUE(fs::create_directories(run_ + "/roots/full"));
  std::ofstream(run_ + "/roots/full/file") << "root's";
  ASSERT_EQ(chown(run_.c_str(), kOther, -1), 0);
  EXPECT_FALSE(RemoveAsOwners(path_ + "/agent"));
  EXPECT_TRUE(fs::exists(run_ + "/roots/full/file"));
}

class AsUserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root acts as somebody else";
  }
  static int Open(const std::string& path) {
    const ScopedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return file.ok() ? 0 : errno;
  }
  static std::string Effective() {
    std::stringstream status;
    status << std::ifstream("/proc/thread-self/status").rdbuf();
    const std::string text = status.str();
    const size_t at = text.find("CapEff:\t");
    return at == std::string::npos ? "" : text.substr(at + 8, 16);
  }
  const Identity other_{kOther, kOther, {64200}};
};

TEST_F(AsUserTest, NothingOfRootsIsOpen) {
  const std::string before = Effective();
  int shadow = 0, environment = 0;
  std::string effective;
  uid_t elsewhere = kOther;
  ASSERT_OK(RunAs(other_, [&] {
    shadow = Open("/etc/shadow");
    // Opening this file requires a capability; a user id alone is not enough.
    environment = Open("/proc/1/environ");
    effective = Effective();
    std::thread([&] { elsewhere = geteuid(); }).join();
    gid_t group = 0;
    EXPECT_EQ(geteuid(), kOther);
    EXPECT_EQ(getegid(), kOther);
    EXPECT_EQ(getgroups(1, &group), 1);
    EXPECT_EQ(group, 64200u);
  }));
  EXPECT_EQ(shadow, EACCES);
  EXPECT_EQ(environment, EACCES);
  EXPECT_EQ(effective, "0000000000000000");
  EXPECT_EQ(geteuid(), 0u);
  EXPECT_EQ(getegid(), 0u);
  EXPECT_EQ(Effective(), before);
}

// A signal that ends one thread ends the whole process, so the user must not be able to send one.
TEST_F(AsUserTest, TheUserCannotKillTheThreadThatActsForThem) {
  ASSERT_OK(RunAs(other_, [&] {
    const pid_t process = getpid();
    const auto thread = static_cast<pid_t>(syscall(SYS_gettid));
    const pid_t child = fork();
    if (child == 0) {
      // The child becomes a process of that user, which then tries to kill the agent's thread.
      if (seteuid(0) != 0 || setgid(kOther) != 0 || setuid(kOther) != 0) _exit(1);
      const bool refused = syscall(SYS_tgkill, process, thread, SIGKILL) != 0 && errno == EPERM;
      _exit(refused ? 0 : 2);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }));
}

TEST(AsNobodyElseTest, WhoIsNotRootRunsItAsItself) {
  if (geteuid() == 0) GTEST_SKIP() << "is root";
  bool ran = false;
  EXPECT_OK(RunAs({kOther, kOther, {}}, [&] { ran = geteuid() != kOther; }));
  EXPECT_TRUE(ran);
}

class LogFileTest : public testing::Test {
 protected:
  LogFileTest() {
    read_.set_job("j");
    read_.set_user(ThisUser()->name);
    read_.set_dir(testing::TempDir() + "/logs-" + std::to_string(getpid()));
    read_.set_generation(3);
    read_.set_rank(1);
    read_.set_limit(4);
    read_.set_run("5Z");
    directory_ = RankDirectory(RunDirectory(read_.dir(), "j", "5Z"), 3, 1);
    std::filesystem::create_directories(directory_);
  }
  ~LogFileTest() override { std::filesystem::remove_all(read_.dir()); }

  v1::ReadLog read_;
  std::string directory_;
};

TEST_F(LogFileTest, PieceByPieceAndNothingAtTheEnd) {
  std::ofstream(directory_ + "/stdout.log") << "abcdef";
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "abcd");
  read_.set_offset(4);
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "ef");
  read_.set_offset(6);
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "");
  std::ofstream(directory_ + "/stderr.log") << "oops";
  read_.set_standard_error(true);
  read_.set_offset(0);
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "oops");
}

TEST_F(LogFileTest, TheEndAloneAndWhereItBegins) {
  std::ofstream(directory_ + "/stdout.log") << "abcdef";
  read_.set_tail(3);
  auto chunk = ReadLogFile(read_, true);
  ASSERT_THAT(chunk, IsOk());
  EXPECT_EQ(chunk->bytes(), "def");
  EXPECT_EQ(chunk->offset(), 3u);
  read_.set_tail(100);
  chunk = ReadLogFile(read_, true);
  ASSERT_THAT(chunk, IsOk());
  EXPECT_EQ(chunk->bytes(), "abcd");
  EXPECT_EQ(chunk->offset(), 0u);
}

TEST_F(LogFileTest, EachRunHasItsOwn_AndTheSameFileIsKnownAgain) {
  std::ofstream(directory_ + "/stdout.log") << "five";
  const std::string later = RankDirectory(RunDirectory(read_.dir(), "j", "5Z"), 4, 0);
  std::filesystem::create_directories(std::filesystem::path(later).parent_path());
  std::filesystem::create_directory_symlink("../generation_3/rank_1", later);
  const std::string file = ReadLogFile(read_, true)->file();
  EXPECT_NE(file, "");
  read_.set_generation(4);
  read_.set_rank(0);
  EXPECT_EQ(ReadLogFile(read_, true)->file(), file);
  read_.set_run("6Z");
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kNotFound));
  const std::string other = RankDirectory(RunDirectory(read_.dir(), "j", "6Z"), 4, 0);
  std::filesystem::create_directories(other);
  std::ofstream(other + "/stdout.log") << "six";
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "six");
  EXPECT_NE(ReadLogFile(read_, true)->file(), file);
}

TEST_F(LogFileTest, WhatIsNoFileIsRefusedAtOnce) {
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_EQ(mkfifo((directory_ + "/stdout.log").c_str(), 0600), 0);
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kFailedPrecondition));
}

// The kernel lets a thread with root's capabilities open these files, even if its user is not root.
//
// Fault (access): A job's log is a link into `/proc` or to a file that its user may not read -> The
// log is refused: root's agent reads it with the user's rights and without capabilities
TEST_F(LogFileTest, ThroughALinkIntoProcNothingOfOthersIsRead) {
  if (geteuid() != 0) GTEST_SKIP() << "only root reads as somebody else";
  ASSERT_EQ(chmod(read_.dir().c_str(), 0755), 0);
  const std::string log = directory_ + "/stdout.log";
  for (const char* target : {"/proc/1/environ", "/proc/self/environ", "/proc/self/maps",
                             "/proc/thread-self/environ", "/proc/sys/kernel/cad_pid"}) {
    std::filesystem::create_symlink(target, log);
    for (const char* user : {"nobody", "root"}) {
      read_.set_user(user);
      EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kPermissionDenied))
          << target << " as " << user;
    }
    std::filesystem::remove(log);
  }
}

TEST_F(LogFileTest, ReadsWithTheRightsOfTheUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root reads as somebody else";
  const std::string secret = directory_ + "/secret";
  std::ofstream(secret) << "root's";
  // The thread does not keep root's groups either.
  ASSERT_EQ(chmod(secret.c_str(), 0640), 0);
  std::filesystem::create_symlink(secret, directory_ + "/stdout.log");
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "root");
  // Root's files are not read without root_too, nor by another user.
  EXPECT_THAT(ReadLogFile(read_, false), StatusIs(absl::StatusCode::kPermissionDenied));
  read_.set_user("nobody");
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kPermissionDenied));
  // This error differs from NOT_FOUND, after which the file may still appear.
  read_.set_user("");
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace cadre::agent
