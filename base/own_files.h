// Opens directories and files of this user in places to which other users may write: a shared log
// directory, /tmp, a project's folder. A path is only a name there; somebody else may have made
// what it leads to, or put a link in its way. So each part of it is opened by descriptor:
//
//   symbolic links       are followed where root or this user made them
//   mounts of FUSE       are entered where root or this user mounted them: who serves one says
//                        himself who owns what is in it
//   an own directory     belongs to this user or root, and not everybody may write to it. Groups
//                        may: whoever lets one write trusts its members with names, not content
//   an own file          is a regular one of this user or root in an own directory, under that name
//                        itself. It has no second name where it is to be written to
//
// Directories above an own one may be anybody's. Their owners can move away what is below, which
// the next one who opens it is told; they cannot make it lead to anything that is not this user's.
//
// Errors: PERMISSION_DENIED with errno EPERM: that is not so; the message says what, where, and
// what to do. Others: errno's. Nothing waits for a FIFO. Blocks on the file system; thread safe.
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

// An own directory that is there, for reading.
absl::StatusOr<ScopedFd> OpenOwnDirectory(const std::string& path);

// The own directory place/below; each part of `below` is own too. What is missing is made, and is
// never open to everybody for writing. `place` may be anybody's.
absl::StatusOr<ScopedFd> MakeOwnDirectory(const std::string& place, absl::string_view below,
                                          mode_t mode = 0777);

// Makes the directory and those above it where they are missing. It may be anybody's.
absl::Status MakeDirectories(const std::string& path, mode_t mode = 0777);

// An own file, opened as open(2) has it. O_TRUNC is done once it is known to be own.
absl::StatusOr<ScopedFd> OpenOwnFile(const std::string& path, int flags, mode_t mode = 0666);

// A regular file of anybody's for reading. Where somebody else's links lead to it, it is theirs as
// well: they cannot make this user read what they may not.
absl::StatusOr<ScopedFd> OpenFileToRead(const std::string& path);

// Of what has been opened by descriptor already: belongs to this user or root.
inline bool IsOwn(const struct stat& info, uid_t self) {
  return info.st_uid == self || info.st_uid == 0;
}

// The user who mounted the FUSE file system on `device`; -1: it is none, or not known. `mounts`: as
// /proc/self/mountinfo.
int64_t UserOfFuse(absl::string_view mounts, dev_t device);

}  // namespace cadre

#endif  // CADRE_BASE_OWN_FILES_H_
