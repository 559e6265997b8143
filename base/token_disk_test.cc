// Tests a file system that accepts writes and reports afterwards that there is no room.
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <string>

#include "base/status_matchers.h"
#include "base/token.h"

namespace {

constexpr int kNfs = 0x6969;
constexpr int kExt4 = 0xef53;

// The type that statfs reports for every file system; 0: the real one.
std::atomic<int> file_system{0};
std::atomic<int> fsyncs{0};
// The next call of this kind fails because the quota is used up.
std::atomic<bool> fsync_fails{false};
std::atomic<bool> close_fails{false};

int Result(long result, std::atomic<bool>* fails) {
  if (!fails->exchange(false)) return static_cast<int>(result);
  errno = EDQUOT;
  return -1;
}

}  // namespace

// Replace libc's, for every test of the program.
extern "C" int fsync(int fd) {
  ++fsyncs;
  return Result(syscall(SYS_fsync, fd), &fsync_fails);
}
extern "C" int fstatfs(int fd, struct statfs* info) noexcept {
  const long result = syscall(SYS_fstatfs, fd, info);
  if (file_system != 0) info->f_type = file_system;
  return static_cast<int>(result);
}
extern "C" int close(int fd) { return Result(syscall(SYS_close, fd), &close_fails); }

namespace cadre {
namespace {

using ::testing::HasSubstr;

class TokenDiskTest : public testing::TestWithParam<std::atomic<bool>*> {
 protected:
  TokenDiskTest() {
    std::string pattern = testing::TempDir() + "/token_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/t";
    file_system = kNfs;
  }
  ~TokenDiskTest() override {
    file_system = 0;
    std::filesystem::remove_all(directory_);
  }

  void Fill() const { *GetParam() = true; }
  // What the directory holds.
  size_t Files() const {
    const std::filesystem::directory_iterator files(directory_);
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  std::string directory_;
  std::string path_;
};

// Every launcher writes such a file when it serves its job's workers.
TEST(TokenOnADiskOfThisMachineTest, IsNotWaitedFor) {
  const std::string path = testing::TempDir() + "/not_waited_for";
  file_system = kExt4;
  fsyncs = 0;
  EXPECT_OK(WriteTokenFile(path, "0123456789abcdef"));
  EXPECT_OK(SharedToken(path + ".shared"));
  EXPECT_EQ(fsyncs, 0);
  file_system = kNfs;
  EXPECT_OK(WriteTokenFile(path, "0123456789abcdef"));
  EXPECT_EQ(fsyncs, 1);
  file_system = 0;
}

// Fault (access): A token is replaced on a network file system whose quota is used up -> The
// command fails, and the token before it stays
TEST_P(TokenDiskTest, AGoodTokenIsKept) {
  ASSERT_OK(WriteTokenFile(path_, "0123456789abcdef"));
  Fill();
  EXPECT_THAT(WriteTokenFile(path_, "fedcba9876543210").ToString(), HasSubstr("quota"));
  const absl::StatusOr<std::string> token = ReadTokenFile(path_);
  ASSERT_OK(token);
  EXPECT_EQ(*token, "0123456789abcdef");
  EXPECT_EQ(Files(), 1u);
}

// Fault (access): A token is made on a network file system whose quota is used up -> The command
// fails and says so, and leaves no empty file
TEST_P(TokenDiskTest, NothingIsLeftOfOneThatWasNotWritten) {
  Fill();
  EXPECT_THAT(CreateTokenFile(path_, "0123456789abcdef").ToString(), HasSubstr("quota"));
  Fill();
  EXPECT_THAT(SharedToken(path_).status().ToString(), HasSubstr("quota"));
  EXPECT_EQ(Files(), 0u);
  EXPECT_OK(SharedToken(path_));
}

INSTANTIATE_TEST_SUITE_P(Calls, TokenDiskTest, testing::Values(&fsync_fails, &close_fails),
                         [](const auto& test) {
                           return test.param == &fsync_fails ? "Fsync" : "Close";
                         });

}  // namespace
}  // namespace cadre
