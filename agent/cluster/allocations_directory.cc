#include "agent/cluster/allocations_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/cluster/users.h"
#include "agent/run_files.h"
#include "base/check.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

constexpr char kPrefix[] = "cadre-agent-";
// The number of entries that one sweep checks, so that a full /tmp does not delay a start.
constexpr int kMaxSweptEntries = 65536;
// Attempts to make a directory: another agent's sweep may remove a new one before it is locked.
constexpr int kAttempts = 16;

// Opens and locks the directory if it belongs to this user and still exists. Returns an invalid
// descriptor if another agent holds it.
ScopedFd Lock(const std::string& path) {
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat opened, named;
  if (!fd.ok() || fstat(fd.get(), &opened) != 0 || opened.st_uid != geteuid()) return ScopedFd();
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return ScopedFd();
  const bool same = lstat(path.c_str(), &named) == 0 && named.st_dev == opened.st_dev &&
                    named.st_ino == opened.st_ino;
  return same ? std::move(fd) : ScopedFd();
}

// Removes the directories that killed agents left. The start waits only briefly for it, because
// jobs may have left any number of files. What cannot be removed stays.
void Sweep(const std::string& parent, FileThread& removal) {
  DIR* directory = opendir(parent.c_str());
  if (directory == nullptr) return;
  for (int i = 0; i < kMaxSweptEntries; ++i) {
    const dirent* entry = readdir(directory);
    if (entry == nullptr) break;
    if (!absl::StartsWith(entry->d_name, kPrefix)) continue;
    const std::string path = absl::StrCat(parent, "/", entry->d_name);
    const auto lock = std::make_shared<ScopedFd>(Lock(path));
    if (lock->ok()) removal.Post([path, lock] { RemoveAsOwners(path); });
  }
  closedir(directory);
  removal.Drain(kDrainLimit);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AllocationsDirectory>> AllocationsDirectory::Make(
    const std::string& parent) {
  auto removal = std::make_unique<FileThread>(FileThread::Options());
  Sweep(parent, *removal);
  for (int i = 0; i < kAttempts; ++i) {
    std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
    }
    ScopedFd lock = Lock(path);
    if (!lock.ok()) continue;
    // Each allocation's files belong to its user, who must be able to traverse this directory.
    if (fchmod(lock.get(), 0711) == 0) {
      return std::unique_ptr<AllocationsDirectory>(
          new AllocationsDirectory(path, std::move(lock), std::move(removal)));
    }
    const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
    rmdir(path.c_str());
    return status;
  }
  return absl::UnavailableError(
      absl::StrCat("other agents remove the directories that this one makes in ", parent,
                   "; start this agent again"));
}

AllocationsDirectory::~AllocationsDirectory() {
  // If the removal takes longer than kDrainLimit, the next agent completes it.
  removal_->Post([path = path_] { RemoveAsOwners(path); });
  removal_->Drain(kDrainLimit);
}

namespace {

constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Visits the directory's entries as they are now. Entries that are made meanwhile may be visited
// too.
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

// Removes a file; fails for a directory.
bool RemoveFile(int directory, const char* name) { return unlinkat(directory, name, 0) == 0; }

// Opens a directory to empty it. If its owner has no permission to read it, the permission is
// changed first.
ScopedFd OpenToEmpty(int directory, const char* name) {
  int fd = openat(directory, name, kDirectory);
  if (fd < 0 && errno == EACCES && fchmodat(directory, name, 0700, 0) == 0) {
    fd = openat(directory, name, kDirectory);
  }
  // The owner may have permission to read the directory and none to change it.
  if (fd >= 0) fchmod(fd, 0700);
  return ScopedFd(fd);
}

// Moves the directory directory/name up into `top`, under a new name.
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

namespace {

// A message may hold 1 MiB.
constexpr uint32_t kMostBytes = 256 << 10;

Identity IdentityOf(const UserEntry& user) {
  constexpr int kMostGroups = 1024;
  Identity identity{user.uid, user.gid, std::vector<gid_t>(kMostGroups)};
  int count = kMostGroups;
  getgrouplist(user.name.c_str(), user.gid, identity.groups.data(), &count);
  identity.groups.resize(static_cast<size_t>(std::clamp(count, 0, kMostGroups)));
  return identity;
}

}  // namespace

absl::StatusOr<v1::LogChunk> ReadLogFile(const v1::ReadLog& read, bool root_too) {
  const std::string run = RunDirectory(read.dir(), read.job(), read.run());
  const std::string path = absl::StrCat(RankDirectory(run, read.generation(), read.rank()),
                                        read.standard_error() ? "/stderr.log" : "/stdout.log");
  absl::StatusOr<ScopedFd> file = absl::InternalError("not opened");
  const auto open = [&] { file = OpenFileToRead(path); };
  if (geteuid() == 0) {
    const absl::StatusOr<UserEntry> found = FindUser(read.user());
    // This must not be NOT_FOUND, which would mean that the file may still appear.
    if (!found.ok()) return absl::FailedPreconditionError(found.status().message());
    const UserEntry& user = *found;
    if (user.uid == 0 && !root_too) {
      return absl::PermissionDeniedError("this agent does not read the logs of root's jobs");
    }
    RETURN_IF_ERROR(RunAs(IdentityOf(user), open));
  } else {
    open();
  }
  RETURN_IF_ERROR(file.status());
  struct stat info = {};
  if (fstat(file->get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  v1::LogChunk chunk;
  chunk.set_offset(read.tail() == 0 ? read.offset() : size - std::min(size, read.tail()));
  std::string& bytes = *chunk.mutable_bytes();
  bytes.resize(std::min(read.limit(), kMostBytes));
  ssize_t got = 0;
  do {
    got = pread(file->get(), bytes.data(), bytes.size(), static_cast<off_t>(chunk.offset()));
  } while (got < 0 && errno == EINTR);
  if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  bytes.resize(got);
  chunk.set_file(absl::StrCat(info.st_dev, ".", info.st_ino));
  return chunk;
}

}  // namespace cadre::agent
