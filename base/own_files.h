// Opens directories and files of this user in places to which other users may write: a shared log
// directory, /tmp, a project's folder. Another user may have made the file that a path leads to, or
// put a symbolic link in its way. So each part of a path is opened by descriptor:
//
//   symbolic links       are followed if root or this user made them
//   mounts of FUSE       are entered if root or this user mounted them: the process that serves a
//                        mount reports the owners of its files itself
//   an own directory     belongs to this user or root, and is not writable by everybody. It may be
//                        writable by its group: members of the group can then change names in it,
//                        but not the content of files
//   an own file          is a regular file of this user or root in an own directory; its name there
//                        is no link. If it is to be written to, it must have no second name
//
// Directories above an own one may belong to any user. Their owners can move away what is below,
// and then opening it fails with an error; they cannot make the path lead to a file of another
// user.
//
// Errors: PERMISSION_DENIED with errno EPERM if one of these rules is broken; the message says
// which, where, and what to do. Other errors are errno's. No call waits for a FIFO. Calls block on
// the file system. Thread safe.
#ifndef CADRE_BASE_OWN_FILES_H_
#define CADRE_BASE_OWN_FILES_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"

namespace cadre {

// Opens an own directory that exists, for reading.
absl::StatusOr<ScopedFd> OpenOwnDirectory(const std::string& path);

// Opens the own directory place/below; each directory of `below` is own too. Missing directories
// are made, never writable by everybody. `place` may belong to any user.
absl::StatusOr<ScopedFd> MakeOwnDirectory(const std::string& place, absl::string_view below,
                                          mode_t mode = 0777);

// Makes the directory, and those above it, if they are missing. They may belong to any user.
absl::Status MakeDirectories(const std::string& path, mode_t mode = 0777);

// Opens an own file with the flags and mode of open(2). O_TRUNC takes effect only after the file is
// known to be own.
absl::StatusOr<ScopedFd> OpenOwnFile(const std::string& path, int flags, mode_t mode = 0666);

// Opens a file that the user named as the place for output, with the flags and mode of open(2), and
// makes it if it is missing; its directory must exist. It may be a regular file or a device of any
// user, in a directory of any user: what the user may write to is for the user to know. Links are
// followed as above.
absl::StatusOr<ScopedFd> OpenFileToWrite(const std::string& path, int flags, mode_t mode = 0666);

// Opens a regular file of any user for reading. If a symbolic link of another user leads to it, the
// file must belong to that user too: otherwise the link could make this user read files that its
// owner may not read.
absl::StatusOr<ScopedFd> OpenFileToRead(const std::string& path);

// Whether a file that has been opened by descriptor belongs to this user or root.
inline bool IsOwn(const struct stat& info, uid_t self) {
  return info.st_uid == self || info.st_uid == 0;
}

// The user who mounted the FUSE file system on `device`; -1: it is no FUSE file system, or the user
// is not known. `mounts` is the content of /proc/self/mountinfo.
int64_t UserOfFuse(absl::string_view mounts, dev_t device);

}  // namespace cadre

#endif  // CADRE_BASE_OWN_FILES_H_
