#include "worker_runtime/shared_memory/segment.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/in_process_workers.h"

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

constexpr std::chrono::minutes kLong(1);

TEST(SegmentMeetingTest, EachMapsAllOthersAgainAndAgain) {
  testing::InProcessWorkers workers(3);
  workers.Run([](Worker& worker) {
    for (int time = 0; time < 2; ++time) {
      const Result<MappedSegments> mapped = MapSegments(worker, "world", 4096, kLong);
      ASSERT_OK(mapped);
      ASSERT_EQ(mapped->segments.size(), 3u);
      for (const auto& segment : mapped->segments) EXPECT_GE(segment->size(), 4096u);
      EXPECT_THAT(mapped->pids, ::testing::Each(getpid()));
    }
  });
}

// This also holds if no time is left to ask for the last rank.
TEST(SegmentMeetingTest, WhoDoesNotComeIsTooLate) {
  testing::InProcessWorkers workers(2);
  for (const auto timeout : {std::chrono::milliseconds(0), std::chrono::milliseconds(20)}) {
    EXPECT_THAT(MapSegments(workers.worker(0), "world", 4096, timeout),
                StatusIs(StatusCode::kDeadlineExceeded,
                         ::testing::HasSubstr("\"world\": rank 1 did not come within ")));
  }
}

TEST(SegmentMeetingTest, EndsWithTheGeneration) {
  testing::InProcessWorkers workers(2);
  workers.EndGeneration();
  EXPECT_THAT(MapSegments(workers.worker(0), "world", 4096, kLong), StatusIs(StatusCode::kAborted));
}

int FileOf(size_t bytes) {
  const int fd = memfd_create("test", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  return fd;
}

TEST(HugePagesTest, AFile_IsZeroedAndHoldsWhatIsWritten) {
  // The sizes are whole huge pages and a rest, less than one, and exactly one.
  for (const size_t bytes : {3 * kHugePageBytes + 5000, size_t{5000}, kHugePageBytes}) {
    const int fd = FileOf(bytes);
    EXPECT_LE(BackWithHugePages(fd, bytes), bytes / kHugePageBytes);
    ASSERT_EQ(posix_fallocate(fd, 0, static_cast<off_t>(bytes)), 0);
    void* const first = MapFile(fd, bytes);
    void* const second = MapFile(fd, bytes);
    ASSERT_NE(first, MAP_FAILED);
    ASSERT_NE(second, MAP_FAILED);
    for (size_t at = 0; at < bytes; at += 1000) {
      ASSERT_EQ(static_cast<char*>(first)[at], 0) << at;
      static_cast<char*>(first)[at] = 7;
    }
    static_cast<char*>(first)[bytes - 1] = 9;
    EXPECT_EQ(memcmp(first, second, bytes), 0);
    munmap(first, bytes);
    munmap(second, bytes);
    close(fd);
  }
}

TEST(HugePagesTest, AMapping_BeginsWhereAHugePageMay) {
  const int fd = FileOf(kHugePageBytes + 1);
  for (int i = 0; i < 3; ++i) {
    void* const data = MapFile(fd, kHugePageBytes + 1);
    ASSERT_NE(data, MAP_FAILED);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kHugePageBytes, 0u);
  }
  close(fd);
}

TEST(HugePagesTest, MemoryThatIsMoved_HoldsWhatItHeld) {
  std::vector<char> memory(4 * kHugePageBytes + 5000);
  for (size_t at = 0; at < memory.size(); ++at) memory[at] = static_cast<char>(at * 7 / 5);
  const std::vector<char> before = memory;
  const MonoTime deadline = MonoNow() + std::chrono::seconds(10);
  EXPECT_LE(MoveToHugePages(memory.data(), memory.size(), deadline), 4u);
  EXPECT_EQ(memory, before);
  EXPECT_EQ(MoveToHugePages(memory.data(), 5000, deadline), 0u);
  EXPECT_EQ(MoveToHugePages(memory.data(), memory.size(), MonoNow()), 0u);
}

TEST(HugePagesTest, NoFile_IsAnError) {
  EXPECT_EQ(BackWithHugePages(-1, kHugePageBytes), 0u);
  EXPECT_EQ(MapFile(-1, kHugePageBytes), MAP_FAILED);
}

}  // namespace

}  // namespace cadre::shared_memory
