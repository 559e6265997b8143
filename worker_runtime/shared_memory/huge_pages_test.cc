#include "worker_runtime/shared_memory/huge_pages.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace cadre::shared_memory {
namespace {

int FileOf(size_t bytes) {
  const int fd = memfd_create("test", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  return fd;
}

TEST(HugePagesTest, AFile_IsZeroedAndHoldsWhatIsWritten) {
  // Whole huge pages, and a rest; below one; exactly one.
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
