// A launcher that may start no thread.
#include <stdio.h>
#include <sys/wait.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

// Root has no limit of processes; a thread without memory for its stack is refused alike.
TEST(ThreadRoomTest, ARefusalIsSaidWithWhatToDo) {
  FILE* const run =
      popen("ulimit -v 4000000; ulimit -s 8000000; launcher/cadre run -- /bin/true 2>&1", "r");
  ASSERT_NE(run, nullptr);
  std::string said;
  for (int c = fgetc(run); c != EOF; c = fgetc(run)) said += static_cast<char>(c);
  EXPECT_EQ(WEXITSTATUS(pclose(run)), 70);
  EXPECT_THAT(said, testing::HasSubstr("cannot start a thread"));
  EXPECT_THAT(said, testing::HasSubstr("ulimit -u"));
}

}  // namespace
}  // namespace cadre::launcher
