// Which errors say that a disk, a quota or a file system's inodes are used up.
#ifndef CADRE_BASE_DISK_FULL_H_
#define CADRE_BASE_DISK_FULL_H_

#include <errno.h>

namespace cadre {

// Of an errno. It may pass, and is no reason to end a worker whose log it is.
inline bool IsDiskFull(int error) { return error == ENOSPC || error == EDQUOT; }

}  // namespace cadre

#endif  // CADRE_BASE_DISK_FULL_H_
