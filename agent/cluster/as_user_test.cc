#include "agent/cluster/as_user.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"

namespace cadre::agent {
namespace {

constexpr uid_t kOther = 64123;

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
    // Which a capability opens, and no user of the file system.
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

// A signal for a thread that ends it ends the process.
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

}  // namespace
}  // namespace cadre::agent
