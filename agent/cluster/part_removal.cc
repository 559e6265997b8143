#include "agent/cluster/part_removal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/cluster/as_user.h"
#include "base/scoped_fd.h"

namespace cadre::agent {
namespace {

constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Its entries as they are now; some that come meanwhile may be among them.
void ForEach(int directory, const std::function<void(const char*)>& visit) {
  const int own = openat(directory, ".", kDirectory);
  DIR* const entries = own < 0 ? nullptr : fdopendir(own);
  if (entries == nullptr) {
    if (own >= 0) close(own);
    return;
  }
  while (const dirent* const entry = readdir(entries)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") visit(entry->d_name);
  }
  closedir(entries);
}

// Fails for a directory.
bool RemoveFile(int directory, const char* name) { return unlinkat(directory, name, 0) == 0; }

// A directory that its owner has closed to itself is opened first.
ScopedFd OpenToEmpty(int directory, const char* name) {
  int fd = openat(directory, name, kDirectory);
  if (fd < 0 && errno == EACCES && fchmodat(directory, name, 0700, 0) == 0) {
    fd = openat(directory, name, kDirectory);
  }
  // One that may be read, and not be changed.
  if (fd >= 0) fchmod(fd, 0700);
  return ScopedFd(fd);
}

// Brings directory/name, which is a directory, up to `top`.
bool BringUp(int top, int directory, const char* name, uint64_t* number) {
  constexpr int kTries = 16;
  for (int i = 0; i < kTries; ++i) {
    const std::string to = absl::StrCat("removed-", ++*number);
    if (renameat(directory, name, top, to.c_str()) == 0) return true;
    // A directory can be moved only if its owner may write to it, which OpenToEmpty() sets. If the
    // name is taken the next one is tried; other errors are final.
    const bool taken = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR;
    if (!taken && (errno != EACCES || !OpenToEmpty(directory, name).ok())) return false;
  }
  return false;
}

// `levels`: how many levels of directories below `path` belong to the agent itself if this
// process's user owns them; other users cannot change those.
bool Remove(const std::string& path, int levels) {
  const ScopedFd directory(open(path.c_str(), kDirectory));
  if (!directory.ok()) return errno == ENOENT;
  ForEach(directory.get(), [&](const char* name) {
    if (RemoveFile(directory.get(), name)) return;
    struct stat info;
    if (fstatat(directory.get(), name, &info, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (info.st_uid == geteuid() && levels > 0) {
      Remove(absl::StrCat(path, "/", name), levels - 1);
      return;
    }
    const auto empty = [&] {
      const ScopedFd below = OpenToEmpty(directory.get(), name);
      if (below.ok()) EmptyDirectory(below.get());
    };
    RunAs({info.st_uid, info.st_gid, {}}, empty).IgnoreError();
    unlinkat(directory.get(), name, AT_REMOVEDIR);
  });
  return rmdir(path.c_str()) == 0 || errno == ENOENT;
}

}  // namespace

bool EmptyDirectory(int directory) {
  uint64_t number = 0;
  while (true) {
    bool found = false, got_on = false;
    ForEach(directory, [&](const char* name) {
      found = true;
      if (RemoveFile(directory, name)) {
        got_on = true;
        return;
      }
      if (const ScopedFd below = OpenToEmpty(directory, name); below.ok()) {
        ForEach(below.get(), [&](const char* deeper) {
          if (RemoveFile(below.get(), deeper) || BringUp(directory, below.get(), deeper, &number)) {
            got_on = true;
          }
        });
      }
      if (unlinkat(directory, name, AT_REMOVEDIR) == 0) got_on = true;
    });
    if (!found) return true;
    if (!got_on) return false;
  }
}

bool RemoveAsOwners(const std::string& path) { return Remove(path, 1); }

}  // namespace cadre::agent
