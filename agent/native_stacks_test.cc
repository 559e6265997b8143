#include "agent/native_stacks.h"

#include <errno.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <thread>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

class OutputOfToolTest : public testing::Test {
 protected:
  // As the agent: orphans come to it.
  void SetUp() override { ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }
  static void ExpectNoChildren() {
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  const std::string file_ = MakeTempDir("tool") + "/pid";
  std::atomic<bool> cancelled_{false};
};

TEST_F(OutputOfToolTest, OfOneThatEnds) {
  EXPECT_EQ(OutputOfTool({"/bin/echo", "a", "b"}, MonoNow() + kPatience, cancelled_), "a b\n");
  ExpectNoChildren();
}

TEST_F(OutputOfToolTest, WhenItIsKilledItsOwnChildIsWaitedForToo) {
  std::thread canceller([this] {
    const MonoTime end = MonoNow() + kPatience;
    while (ReadFileOrEmpty(file_).empty() && MonoNow() < end) poll(nullptr, 0, 1);
    cancelled_ = true;
  });
  const std::string text =
      OutputOfTool({"/bin/sh", "-c", "sleep 1000 & echo $! > \"$0\"; wait", file_},
                   MonoNow() + kPatience, cancelled_);
  canceller.join();
  EXPECT_NE(ReadFileOrEmpty(file_), "");
  EXPECT_THAT(text, HasSubstr("was not done in time"));
  ExpectNoChildren();
}

TEST_F(OutputOfToolTest, WhenItEndsItsOwnChildIsWaitedForToo) {
  EXPECT_EQ(OutputOfTool({"/bin/sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo done"},
                         MonoNow() + kPatience, cancelled_),
            "done\n");
  ExpectNoChildren();
}

}  // namespace
}  // namespace cadre
