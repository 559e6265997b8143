#include "worker_runtime/shared_memory/segment.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status_matchers.h"

namespace cadre::shared_memory {
namespace {

constexpr size_t kMoreThanAnyMachineHas = size_t{1} << 50;

TEST(SegmentTest, AnotherProcess_SeesWhatWasWritten) {
  auto segment = SharedSegment::Create(10000);
  ASSERT_OK(segment);
  strcpy((*segment)->data() + 9000, "written before");
  const std::string address = (*segment)->address();
  const pid_t child = fork();
  if (child == 0) {
    auto opened = SharedSegment::Open(address);
    const bool seen = opened.ok() && strcmp((*opened)->data() + 9000, "written before") == 0;
    if (seen) strcpy((*opened)->data(), "and back");
    _exit(seen ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_STREQ((*segment)->data(), "and back");
}

TEST(SegmentTest, Open_AfterTheDescriptorWasClosed_SaysWhichProcess) {
  auto segment = SharedSegment::Create(4096);
  ASSERT_OK(segment);
  const std::string address = (*segment)->address();
  (*segment)->CloseDescriptor();
  EXPECT_THAT(SharedSegment::Open(address),
              StatusIs(StatusCode::kUnavailable, ::testing::HasSubstr(std::to_string(getpid()))));
}

TEST(SegmentTest, Open_Nonsense_IsRefused) {
  for (const char* address : {"", "1", "a b c", "1 2 0", "1 2 3 4"}) {
    EXPECT_THAT(SharedSegment::Open(address), StatusIs(StatusCode::kInvalidArgument)) << address;
  }
}

TEST(SegmentTest, Open_LargerThanItIs_IsRefused) {
  auto segment = SharedSegment::Create(4096);
  ASSERT_OK(segment);
  std::string address = (*segment)->address();
  address.replace(address.rfind(' '), std::string::npos, " 8192");
  EXPECT_THAT(SharedSegment::Open(address), StatusIs(StatusCode::kUnavailable));
}

TEST(SegmentTest, Create_MoreThanThereIs_SaysSo) {
  EXPECT_THAT(SharedSegment::Create(kMoreThanAnyMachineHas),
              StatusIs(StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace cadre::shared_memory
