#include "base/reserve_bytes.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include "base/scoped_fd.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr off_t kMiB = off_t{1} << 20;

TEST(ReserveBytesTest, TheFileHasThem) {
  const ScopedFd fd(memfd_create("test", MFD_CLOEXEC));
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(ReserveBytes(fd.get(), 3 * kMiB + 1), 0);
  struct stat found = {};
  ASSERT_EQ(fstat(fd.get(), &found), 0);
  EXPECT_EQ(found.st_size, 3 * kMiB + 1);
  EXPECT_GE(found.st_blocks * 512, 3 * kMiB + 1);
  EXPECT_EQ(ReserveBytes(-1, 1), EBADF);
}

// Fault (checkpoint): A timer's signals interrupt the reservation of memory for a state or a
// communicator -> Memory is reserved in pieces that are done between two signals
TEST(ReserveBytesTest, UnderATimersSignalsItGoesOnInSmallerPieces) {
  for (const off_t fits : {1000 * kMiB, 64 * kMiB, 5 * kMiB, 1 * kMiB}) {
    off_t end = 0;
    int calls = 0;
    const auto allocate = [&](int fd, off_t at, off_t size) {
      EXPECT_EQ(fd, 7);
      EXPECT_EQ(at, end) << "one behind the other";
      if (++calls > 2000) return ECANCELED;
      // A larger piece is always interrupted, a smaller one sometimes.
      if (size > fits || calls % 3 == 0) return EINTR;
      end = at + size;
      return 0;
    };
    EXPECT_EQ(ReserveBytes(7, 1000 * kMiB, allocate), 0);
    EXPECT_EQ(end, 1000 * kMiB);
  }
}

TEST(ReserveBytesTest, AnErrorEndsIt) {
  int calls = 0;
  EXPECT_EQ(ReserveBytes(7, 1000 * kMiB,
                         [&](int, off_t, off_t size) {
                           EXPECT_EQ(size, 1000 * kMiB) << "the whole at first";
                           ++calls;
                           return ENOSPC;
                         }),
            ENOSPC);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace cadre
