#include "base/scoped_fd.h"

#include <fcntl.h>

#include <utility>

#include "gtest/gtest.h"

namespace cadre {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(ScopedFd, ClosesWithItsOneOwner) {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  {
    ScopedFd owner;
    EXPECT_FALSE(owner.ok());
    {
      ScopedFd first(fd);
      EXPECT_EQ(first.get(), fd);
      owner = std::move(first);
    }
    EXPECT_TRUE(owner.ok());
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(ScopedFd, ResetClosesWhatItHad) {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ScopedFd owner(fd);
  owner.Reset();
  EXPECT_FALSE(owner.ok());
  EXPECT_FALSE(IsOpen(fd));
}

}  // namespace
}  // namespace cadre
