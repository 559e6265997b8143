#include "worker_runtime/gloo/blocked_pipe_signal.h"

#include <errno.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace cadre::gloo {
namespace {

TEST(BlockedPipeSignal, WritingToNobodyIsAnErrorAndKillsNobody) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  {
    const BlockedPipeSignal outer;
    {
      const BlockedPipeSignal inner;
      EXPECT_EQ(write(ends[1], "x", 1), -1);
      EXPECT_EQ(errno, EPIPE);
    }
    EXPECT_EQ(write(ends[1], "x", 1), -1);
  }
  close(ends[1]);
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, nullptr, &now);
  EXPECT_EQ(sigismember(&now, SIGPIPE), 0) << "as it was before";
}

}  // namespace
}  // namespace cadre::gloo
