#include "agent/local/local_directory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "agent/local/agent_cleanup.h"
#include "base/progress_snapshot.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

void MakeOld(const std::string& path) {
  const timespec hours_ago = {time(nullptr) - 7200, 0};
  const timespec times[] = {hours_ago, hours_ago};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

class LocalDirectoryTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(parent_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(parent_); }

  static int Mode(const std::string& path) {
    struct stat found = {};
    EXPECT_EQ(lstat(path.c_str(), &found), 0) << path;
    return found.st_mode & 0777;
  }

  static bool Restored(LocalDirectory& directory) {
    const absl::StatusOr<bool> restored = directory.Restore();
    EXPECT_OK(restored);
    return restored.value_or(false);
  }

  // A short path: TempDir may be longer than a socket's name can be.
  std::string parent_ = "/tmp/cadre_test_XXXXXX";
};

TEST_F(LocalDirectoryTest, Make_IsClosedToOthersAndRemovedAtTheEnd) {
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  const std::string path = (*directory)->path();
  EXPECT_EQ(Mode(path), 0700);
  EXPECT_EQ(Mode(std::filesystem::path(path).parent_path()), 0700);
  EXPECT_EQ(Mode((*directory)->token_path()), 0600);
  EXPECT_LE((*directory)->socket_path().size(), 107u);
  directory->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(LocalDirectoryTest, MemoryOfItsWorkersGoesWithIt) {
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  const std::string memory = std::filesystem::canonical(CheckpointMemoryPath((*directory)->path()));
  EXPECT_EQ(Mode(memory), 0700);
  EXPECT_EQ(memory.substr(0, 9), "/dev/shm/");
  std::ofstream(memory + "/rank-0.0") << "state";
  directory->reset();
  EXPECT_FALSE(std::filesystem::exists(memory));
}

TEST_F(LocalDirectoryTest, MemoryGoesAlsoWhereTheLinkIsGone) {
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  const std::string memory = std::filesystem::canonical(CheckpointMemoryPath((*directory)->path()));
  std::filesystem::remove_all((*directory)->path());
  directory->reset();
  EXPECT_FALSE(std::filesystem::exists(memory));
}

TEST_F(LocalDirectoryTest, WhatWasRemovedIsMadeAnew_WithTheMemoryThereWas) {
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  const std::string path = (*directory)->path();
  const std::string memory = std::filesystem::canonical(CheckpointMemoryPath(path));
  EXPECT_FALSE(Restored(**directory));
  std::filesystem::remove_all(path);
  EXPECT_TRUE(Restored(**directory));
  EXPECT_EQ((*directory)->path(), path);
  EXPECT_EQ(Mode(path), 0700);
  EXPECT_EQ(ReadTokenFile((*directory)->token_path()).value_or(""), (*directory)->token());
  EXPECT_EQ(std::filesystem::canonical(CheckpointMemoryPath(path)), memory);
  EXPECT_TRUE(IsListenedOn((*directory)->socket_path()));
  EXPECT_FALSE(Restored(**directory));
  // As at the end of a session, which removes the user's shared memory too.
  std::filesystem::remove_all(memory);
  EXPECT_TRUE(Restored(**directory));
  EXPECT_EQ(Mode(std::filesystem::canonical(CheckpointMemoryPath(path))), 0700);
}

// Fault (node): The launcher's directory and its parent are removed -> The next generation has it
// in `/tmp`, with the checkpoints in memory if they are left
TEST_F(LocalDirectoryTest, WhereItsPlaceIsGoneItIsInAnother) {
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  std::filesystem::remove_all(parent_);
  EXPECT_TRUE(Restored(**directory));
  const std::string path = (*directory)->path();
  EXPECT_EQ(path.rfind("/tmp/cadre-" + std::to_string(getuid()) + "/agent-", 0), 0u) << path;
  EXPECT_TRUE(IsListenedOn((*directory)->socket_path()));
  directory->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

// systemd-tmpfiles skips what it cannot lock.
//
// Fault (node): systemd's cleaner of `/tmp` looks for old files -> The launcher's directory is
// locked, which the cleaner respects
TEST_F(LocalDirectoryTest, IsLockedAgainstACleaner) {
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  const ScopedFd cleaner(open((*directory)->path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_NE(flock(cleaner.get(), LOCK_EX | LOCK_NB), 0);
}

TEST_F(LocalDirectoryTest, IsAbandonedOnceNobodyListens) {
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  const std::string path = (*directory)->path();
  const std::string memory = std::filesystem::canonical(CheckpointMemoryPath(path));
  RemoveOnceAbandoned(path, absl::Milliseconds(10));
  EXPECT_TRUE(std::filesystem::exists(path));
  (*directory)->DoNotRemove();
  directory->reset();
  RemoveOnceAbandoned(path, absl::Milliseconds(10));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(memory));
}

TEST_F(LocalDirectoryTest, MemoryOfAKilledAgentIsSweptAndNothingElse) {
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  const std::string user = parent_ + "/cadre-" + std::to_string(getuid());
  ASSERT_EQ(mkdir(user.c_str(), 0700), 0);
  std::string memory = "/dev/shm/cadre-" + std::to_string(getuid()) + "-XXXXXX";
  ASSERT_NE(mkdtemp(memory.data()), nullptr);
  const std::string other = parent_ + "/other";
  ASSERT_EQ(mkdir(other.c_str(), 0700), 0);
  const std::string dead = user + "/agent-" + std::to_string(gone);
  for (const auto& [path, target] : {std::pair(dead, memory), std::pair(dead + "-1", other)}) {
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    ASSERT_EQ(symlink(target.c_str(), CheckpointMemoryPath(path).c_str()), 0);
    MakeOld(path);
  }

  ASSERT_OK(LocalDirectory::Make(parent_));
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_FALSE(std::filesystem::exists(memory));
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST_F(LocalDirectoryTest, Make_TwoInOneProcess_DoNotMeet) {
  auto first = LocalDirectory::Make(parent_);
  auto second = LocalDirectory::Make(parent_);
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_NE((*first)->path(), (*second)->path());
  EXPECT_NE((*first)->token(), (*second)->token());
}

// Fault (node): Launchers in containers with PID namespaces of their own share the user's directory
// -> Each removes what killed launchers left, and never the directory of one that has just begun
TEST_F(LocalDirectoryTest, Make_SweepsWhatKilledAgentsLeft) {
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  const std::string user = parent_ + "/cadre-" + std::to_string(getuid());
  ASSERT_EQ(mkdir(user.c_str(), 0700), 0);
  const std::string dead = user + "/agent-" + std::to_string(gone);
  const std::string second = dead + "-3";
  const std::string alive = user + "/agent-" + std::to_string(getppid());
  const std::string odd = dead + "-x";
  for (const std::string& path : {dead, second, alive, odd}) {
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    std::ofstream(path + "/token") << "t";
    MakeOld(path);
  }
  // The directory of a container's agent that does not listen yet.
  const std::string young = dead + "-4";
  ASSERT_EQ(mkdir(young.c_str(), 0700), 0);

  ASSERT_OK(LocalDirectory::Make(parent_));
  for (const std::string& path : {dead, second}) {
    EXPECT_FALSE(std::filesystem::exists(path)) << path;
  }
  for (const std::string& path : {alive, odd, young}) {
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
  }
}

TEST_F(LocalDirectoryTest, Make_OfAFullDirectory_SweepsABoundedPartOfIt) {
  constexpr int kTokens = 300, kDead = 300, kSwept = 256;
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  const std::string user = parent_ + "/cadre-" + std::to_string(getuid());
  ASSERT_EQ(mkdir(user.c_str(), 0700), 0);
  const std::string dead = user + "/agent-" + std::to_string(gone) + "-";
  for (int i = 0; i < kTokens; ++i) {
    std::ofstream(user + "/rdzv-" + std::to_string(i) + ".token") << "t";
  }
  for (int i = 1; i <= kDead; ++i) {
    ASSERT_EQ(mkdir((dead + std::to_string(i)).c_str(), 0700), 0);
    MakeOld(dead + std::to_string(i));
  }
  ASSERT_OK(LocalDirectory::Make(parent_));
  const auto left = std::distance(std::filesystem::directory_iterator(user), {});
  EXPECT_EQ(left, kTokens + kDead - kSwept);
}

TEST_F(LocalDirectoryTest, Make_OpenUserDirectory_IsRefused) {
  const std::string user = parent_ + "/cadre-" + std::to_string(getuid());
  ASSERT_EQ(mkdir(user.c_str(), 0700), 0);
  ASSERT_EQ(chmod(user.c_str(), 0755), 0);
  EXPECT_THAT(LocalDirectory::Make(parent_),
              StatusIs(absl::StatusCode::kPermissionDenied, testing::HasSubstr(user)));
}

TEST_F(LocalDirectoryTest, Make_WhereAnotherUserMadeItsPlaceFirst_IsFoundAllTheSame) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  const std::string user = parent_ + "/cadre-0", home = parent_ + "/home";
  ASSERT_EQ(mkdir(user.c_str(), 0777), 0);
  ASSERT_EQ(chown(user.c_str(), 64123, -1), 0);
  ASSERT_EQ(mkdir(home.c_str(), 0700), 0);
  const char* const before = getenv("HOME");
  const absl::Cleanup restore = [had = before != nullptr,
                                 kept = std::string(before == nullptr ? "" : before)] {
    had ? setenv("HOME", kept.c_str(), 1) : unsetenv("HOME");
  };
  setenv("HOME", home.c_str(), 1);
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  EXPECT_THAT((*directory)->path(), testing::StartsWith(user + "-"));
  EXPECT_THAT(LocalDirectory::All(parent_), testing::ElementsAre((*directory)->path()));
  EXPECT_FALSE(Restored(**directory));
  std::filesystem::remove_all((*directory)->path());
  const std::string path = (*directory)->path();
  EXPECT_TRUE(Restored(**directory));
  EXPECT_EQ((*directory)->path(), path);
}

TEST_F(LocalDirectoryTest, Make_WhereNothingCanBeMade_TheWayOutIsSaid) {
  const std::string file = parent_ + "/file";
  std::ofstream(file) << "x";
  EXPECT_THAT(std::string(LocalDirectory::Make(file).status().message()),
              testing::AllOf(testing::StartsWith("cannot make " + file + "/cadre-"),
                             testing::HasSubstr("set XDG_RUNTIME_DIR to a directory of yours")));
}

TEST_F(LocalDirectoryTest, Make_LinkInPlaceOfTheUserDirectory_IsRefused) {
  const std::string user = parent_ + "/cadre-" + std::to_string(getuid());
  ASSERT_EQ(symlink("/tmp", user.c_str()), 0);
  EXPECT_THAT(LocalDirectory::Make(parent_), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(LocalDirectoryTest, Make_PathTooLongForASocket_IsRefused) {
  const std::string deep = parent_ + "/" + std::string(100, 'x');
  ASSERT_EQ(mkdir(deep.c_str(), 0700), 0);
  EXPECT_THAT(LocalDirectory::Make(deep),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("XDG_RUNTIME_DIR")));
}

TEST_F(LocalDirectoryTest, Accept_ConnectionOfThisUser_IsGivenOut) {
  auto directory = LocalDirectory::Make(parent_);
  ASSERT_OK(directory);
  EXPECT_EQ((*directory)->Accept(), -1);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, (*directory)->socket_path().c_str(), sizeof(address.sun_path) - 1);
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const int accepted = (*directory)->Accept();
  EXPECT_GE(accepted, 0);
  close(accepted);
  close(client);
}

}  // namespace
}  // namespace cadre::agent
