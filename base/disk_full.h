// Tells which errors mean that a disk, a quota or a file system's inodes are used up.
#ifndef CADRE_BASE_DISK_FULL_H_
#define CADRE_BASE_DISK_FULL_H_

#include <errno.h>

namespace cadre {

// `error` is an errno. The condition may pass, and is no reason to end the worker whose log it
// hits.
inline bool IsDiskFull(int error) { return error == ENOSPC || error == EDQUOT; }

}  // namespace cadre

#endif  // CADRE_BASE_DISK_FULL_H_
