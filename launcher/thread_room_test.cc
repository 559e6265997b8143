#include "launcher/thread_room.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "base/status_matchers.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

TEST(ThreadRoomTest, ThereIsRoom) { EXPECT_THAT(CheckThreadRoom(kGrpcThreads), IsOk()); }

// Root has no limit of processes; a thread without memory for its stack is refused alike.
TEST(ThreadRoomTest, ARefusalIsSaidWithWhatToDo) {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit few = {pages * static_cast<rlim_t>(getpagesize()) + (20 << 20), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &few), 0);
  const absl::Status status = CheckThreadRoom(64);
  // Those that were started have ended.
  const absl::Status again = CheckThreadRoom(1);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("ulimit -u")));
  EXPECT_THAT(again, IsOk());
}

}  // namespace
}  // namespace cadre::launcher
