#include "agent/cluster/parts_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/cluster/part_removal.h"

namespace cadre::agent {
namespace {

constexpr char kPrefix[] = "cadre-agent-";
// Looked at by one sweep, so that a full /tmp does not delay a start.
constexpr int kMaxSweptEntries = 65536;
// One that is made may be taken for another agent's, until it is locked.
constexpr int kAttempts = 16;

// The directory, locked: this user's, and still there. Without: somebody lives there.
ScopedFd Lock(const std::string& path) {
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat opened, named;
  if (!fd.ok() || fstat(fd.get(), &opened) != 0 || opened.st_uid != geteuid()) return ScopedFd();
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return ScopedFd();
  const bool same = lstat(path.c_str(), &named) == 0 && named.st_dev == opened.st_dev &&
                    named.st_ino == opened.st_ino;
  return same ? std::move(fd) : ScopedFd();
}

// Removes what killed agents left, behind a start that waits a moment for it: jobs may have left
// any number of files. What cannot be removed stays.
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

absl::StatusOr<std::unique_ptr<PartsDirectory>> PartsDirectory::Make(const std::string& parent) {
  auto removal = std::make_unique<FileThread>(FileThread::Options());
  Sweep(parent, *removal);
  for (int i = 0; i < kAttempts; ++i) {
    std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
    }
    ScopedFd lock = Lock(path);
    if (!lock.ok()) continue;
    // Each part's files belong to its user, who must be able to pass.
    if (fchmod(lock.get(), 0711) == 0) {
      return std::unique_ptr<PartsDirectory>(
          new PartsDirectory(path, std::move(lock), std::move(removal)));
    }
    const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
    rmdir(path.c_str());
    return status;
  }
  return absl::UnavailableError(
      absl::StrCat("other agents remove what this one makes in ", parent, "; start it again"));
}

PartsDirectory::~PartsDirectory() {
  // What takes longer is the next agent's to remove.
  removal_->Post([path = path_] { RemoveAsOwners(path); });
  removal_->Drain(kDrainLimit);
}

}  // namespace cadre::agent
