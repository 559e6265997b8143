// Reserves room for a file's bytes, also in processes that receive signals.
#ifndef CADRE_BASE_RESERVE_BYTES_H_
#define CADRE_BASE_RESERVE_BYTES_H_

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <cstdint>

namespace cadre {

// Works like posix_fallocate() from offset 0 and likewise returns an errno. On older kernels that
// call fails with EINTR at any handled signal if the file is in memory, and releases what it had
// reserved; then this function continues in pieces small enough to finish between two signals of a
// timer. It does not begin with pieces, because they would fill the memory before it is known that
// the whole does not fit.
template <typename Allocate>
int ReserveBytes(int fd, uint64_t bytes, const Allocate& allocate) {
  constexpr uint64_t kLargestPiece = uint64_t{64} << 20;
  constexpr uint64_t kSmallestPiece = uint64_t{1} << 20;
  uint64_t piece = bytes;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t size = std::min(piece, bytes - done);
    const int error = allocate(fd, static_cast<off_t>(done), static_cast<off_t>(size));
    if (error == EINTR) {
      piece = std::clamp(piece / 2, kSmallestPiece, kLargestPiece);
      continue;
    }
    if (error != 0) return error;
    done += size;
  }
  return 0;
}

inline int ReserveBytes(int fd, uint64_t bytes) { return ReserveBytes(fd, bytes, posix_fallocate); }

}  // namespace cadre

#endif  // CADRE_BASE_RESERVE_BYTES_H_
