// Opens files and directories that belong to this user, in places where other users may write too.
#include "base/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/token.h"

namespace cadre {
namespace {

// The kernel's limit of symbolic links in one path.
constexpr int kMostLinks = 40;
constexpr mode_t kEverybodyWrites = 002;
constexpr size_t kMostMountsBytes = 4 << 20;

absl::Status Failed(absl::string_view what, const std::string& path) {
  const int error = errno;
  const absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path));
  errno = error;
  return status;
}

absl::Status Refused(const std::string& line) {
  errno = EPERM;
  return absl::PermissionDeniedError(line);
}

std::string ReadAll(const char* path, size_t limit) {
  const ScopedFd file(open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  char block[4096];
  while (file.ok() && text.size() < limit) {
    const ssize_t got = read(file.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(block, static_cast<size_t>(got));
  }
  return text;
}

// Returns the id of the overflow user, which a user namespace shows as the owner of the files of
// all users that it does not map, root among them; -1: all users are mapped.
int64_t UnknownUser() {
  static const int64_t user = [] {
    const std::vector<std::string> map =
        absl::StrSplit(ReadAll("/proc/self/uid_map", kMostMountsBytes), absl::ByAnyChar(" \n"),
                       absl::SkipWhitespace());
    uint32_t known = 0;
    if (map.size() == 3 && absl::SimpleAtoi(map[2], &known) && known == ~uint32_t{0}) {
      return int64_t{-1};
    }
    int64_t unknown = -1;
    return absl::SimpleAtoi(ReadAll("/proc/sys/kernel/overflowuid", 64), &unknown) ? unknown
                                                                                   : int64_t{-1};
  }();
  return user;
}

bool IsTrustedLink(const struct stat& link, const struct stat& in) {
  if (IsOwn(link, geteuid())) return true;
  return static_cast<int64_t>(link.st_uid) == UnknownUser() && (in.st_mode & kEverybodyWrites) == 0;
}

// The file or directory to which a path led.
struct Place {
  ScopedFd fd;       // opened with O_PATH
  std::string path;  // its path without symbolic links, for messages
  struct stat info = {};
};

struct Way {
  // If set, missing parts of the path are made as directories with this mode. `whole` is the path
  // that is to be made, for messages.
  std::optional<mode_t> make;
  std::string whole;
  // Whether links of other users are followed; then the user who made one is remembered.
  bool follow_others = false;
};

absl::Status CheckMount(const struct stat& info, dev_t before, const std::string& path) {
  if (info.st_dev == before) return absl::OkStatus();
  const int64_t user = UserOfFuse(ReadAll("/proc/self/mountinfo", kMostMountsBytes), info.st_dev);
  if (user < 0 || user == 0 || user == static_cast<int64_t>(geteuid())) return absl::OkStatus();
  return Refused(absl::StrCat(path, " lies on a file system that user ", user,
                              " serves (FUSE) and may change at will: choose another place"));
}

class Walker {
 public:
  Walker(const Way& way, std::optional<uid_t>* linked_by) : way_(way), linked_by_(linked_by) {}

  absl::Status Begin(const std::string& path) {
    if (path.empty()) {
      errno = ENOENT;
      return Failed("open", "a path without a name");
    }
    Add(path);
    return path[0] == '/' ? ToRoot() : To(".", "");
  }

  // Walks through all that is left of the path.
  absl::Status Go() {
    while (!left_.empty()) {
      const std::string name = std::move(left_.front());
      left_.pop_front();
      const bool of_link = of_link_ > 0;
      if (of_link) --of_link_;
      RETURN_IF_ERROR(Step(name, of_link));
    }
    return absl::OkStatus();
  }

  // Walks to the directory that contains the last name of the path, and does not look at that name.
  absl::StatusOr<std::string> GoToParent() {
    if (left_.empty() || left_.back() == "..") {
      errno = EISDIR;
      return Failed("open", at_.path);
    }
    std::string name = std::move(left_.back());
    left_.pop_back();
    RETURN_IF_ERROR(Go());
    return name;
  }

  void Add(absl::string_view path) {
    for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
      if (part != ".") left_.emplace_back(part);
    }
  }
  const Place& at() const { return at_; }

  // Opens the file to which the walk came, by the name under which it was reached.
  ScopedFd OpenFound(int flags) const {
    ScopedFd file(openat(parent_.get(), name_.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
    struct stat info;
    if (!file.ok() || fstat(file.get(), &info) != 0) return ScopedFd();
    if (info.st_dev == at_.info.st_dev && info.st_ino == at_.info.st_ino) return file;
    errno = ESTALE;
    return ScopedFd();
  }

 private:
  absl::Status ToRoot() { return To("/", "/"); }

  absl::Status To(const char* directory, const std::string& shown) {
    at_.fd.Reset(open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC));
    at_.path = shown;
    if (!at_.fd.ok() || fstat(at_.fd.get(), &at_.info) != 0) return Failed("open", directory);
    return absl::OkStatus();
  }

  absl::Status CannotPass(const std::string& path) const {
    return way_.make.has_value() ? Failed("make directory", way_.whole) : Failed("open", path);
  }

  std::string Below(const std::string& name) const {
    if (at_.path.empty()) return name;
    return absl::StrCat(at_.path, at_.path.back() == '/' ? "" : "/", name);
  }

  ScopedFd Open(const std::string& name) const {
    return ScopedFd(openat(at_.fd.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  }

  absl::Status Step(const std::string& name, bool of_link) {
    const std::string path = Below(name);
    ScopedFd next = Open(name);
    if (!next.ok() && errno == ENOENT && way_.make.has_value()) {
      // A link may lead to a disk that is not mounted; then nothing is made in its place.
      if (of_link) {
        return absl::FailedPreconditionError(absl::StrCat("cannot make directory ", way_.whole,
                                                          ": ", link_, ", which is not there"));
      }
      const mode_t mode = *way_.make & ~kEverybodyWrites;
      if (mkdirat(at_.fd.get(), name.c_str(), mode) != 0 && errno != EEXIST) {
        return Failed("make directory", way_.whole);
      }
      next = Open(name);
    }
    struct stat info;
    if (!next.ok() || fstat(next.get(), &info) != 0) {
      return CannotPass(path);
    }
    if (S_ISLNK(info.st_mode)) return Follow(next.get(), info, path);
    if (!S_ISDIR(info.st_mode) && (!left_.empty() || way_.make.has_value())) {
      errno = ENOTDIR;
      return CannotPass(path);
    }
    RETURN_IF_ERROR(CheckMount(info, at_.info.st_dev, path));
    parent_ = std::exchange(at_.fd, std::move(next));
    name_ = name;
    at_.path = path;
    at_.info = info;
    return absl::OkStatus();
  }

  absl::Status Follow(int link, const struct stat& info, const std::string& path) {
    char target[PATH_MAX];
    const ssize_t size = readlinkat(link, "", target, sizeof(target));
    if (size <= 0 || size == static_cast<ssize_t>(sizeof(target))) return Failed("read link", path);
    const std::string to(target, static_cast<size_t>(size));
    if (!IsTrustedLink(info, at_.info)) {
      const bool another =
          linked_by_ != nullptr && linked_by_->has_value() && **linked_by_ != info.st_uid;
      if (!way_.follow_others || another) {
        return Refused(absl::StrCat(path, " is a link to ", to, " that user ", info.st_uid,
                                    " made: name the place itself if you trust it, or choose "
                                    "another one"));
      }
      if (linked_by_ != nullptr) *linked_by_ = info.st_uid;
    }
    if (++links_ > kMostLinks) {
      errno = ELOOP;
      return Failed("open", path);
    }
    link_ = absl::StrCat(path, " is a link to ", to);
    std::deque<std::string> rest = std::exchange(left_, {});
    Add(to);
    of_link_ += left_.size();
    left_.insert(left_.end(), rest.begin(), rest.end());
    return to[0] == '/' ? ToRoot() : absl::OkStatus();
  }

  const Way way_;
  std::optional<uid_t>* const linked_by_;
  Place at_;
  std::deque<std::string> left_;
  ScopedFd parent_;
  std::string name_;
  int links_ = 0;
  size_t of_link_ = 0;  // how many of the names that are left come from a link
  std::string link_;    // the last link, in words
};

// Some file systems give all files another owner than the process that makes them: NFS with root
// squashed, or a mount that belongs to one user. Whether a file that this process makes in the
// directory gets that owner too.
bool MakesFilesOf(uid_t owner, int directory) {
  const std::string name = absl::StrCat(".cadre-", RandomToken().substr(0, 16));
  const ScopedFd probe(
      openat(directory, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!probe.ok()) return false;
  struct stat info;
  const bool same = fstat(probe.get(), &info) == 0 && info.st_uid == owner;
  unlinkat(directory, name.c_str(), 0);
  return same;
}

absl::Status CheckOwnDirectory(const Place& place) {
  if (!S_ISDIR(place.info.st_mode)) {
    errno = ENOTDIR;
    return Failed("open", place.path);
  }
  if (!IsOwn(place.info, geteuid()) && !MakesFilesOf(place.info.st_uid, place.fd.get())) {
    return Refused(absl::StrCat("directory ", place.path, " belongs to user ", place.info.st_uid,
                                ", who could replace what is in it: choose another one, "
                                "or remove it"));
  }
  if ((place.info.st_mode & kEverybodyWrites) != 0) {
    return Refused(absl::StrCat("everybody may write to directory ", place.path,
                                ": chmod o-w it, or choose one of yours"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ScopedFd> Readable(const Place& place) {
  ScopedFd fd(openat(place.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok()) return Failed("open", place.path);
  return fd;
}

absl::Status CheckRegular(int fd, const std::string& path, struct stat* info) {
  if (fstat(fd, info) != 0) return Failed("look at", path);
  if (S_ISREG(info->st_mode)) return absl::OkStatus();
  errno = EINVAL;
  return absl::FailedPreconditionError(absl::StrCat(path, " is no regular file: remove it"));
}

}  // namespace

absl::StatusOr<ScopedFd> OpenOwnDirectory(const std::string& path) {
  Walker walker({}, nullptr);
  RETURN_IF_ERROR(walker.Begin(path));
  RETURN_IF_ERROR(walker.Go());
  RETURN_IF_ERROR(CheckOwnDirectory(walker.at()));
  return Readable(walker.at());
}

absl::StatusOr<ScopedFd> MakeOwnDirectory(const std::string& place, absl::string_view below,
                                          mode_t mode) {
  const std::string whole = below.empty() ? place : absl::StrCat(place, "/", below);
  Walker walker({mode, whole, false}, nullptr);
  RETURN_IF_ERROR(walker.Begin(place));
  RETURN_IF_ERROR(walker.Go());
  for (const absl::string_view part : absl::StrSplit(below, '/', absl::SkipEmpty())) {
    walker.Add(part);
    RETURN_IF_ERROR(walker.Go());
    RETURN_IF_ERROR(CheckOwnDirectory(walker.at()));
  }
  if (below.empty()) RETURN_IF_ERROR(CheckOwnDirectory(walker.at()));
  return Readable(walker.at());
}

absl::Status MakeDirectories(const std::string& path, mode_t mode) {
  Walker walker({mode, path, false}, nullptr);
  RETURN_IF_ERROR(walker.Begin(path));
  return walker.Go();
}

absl::StatusOr<ScopedFd> OpenOwnFile(const std::string& path, int flags, mode_t mode) {
  Walker walker({}, nullptr);
  RETURN_IF_ERROR(walker.Begin(path));
  ASSIGN_OR_RETURN(const std::string name, walker.GoToParent());
  const Place& directory = walker.at();
  RETURN_IF_ERROR(CheckOwnDirectory(directory));
  ScopedFd file(openat(directory.fd.get(), name.c_str(),
                       (flags & ~O_TRUNC) | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode));
  if (!file.ok()) {
    if (errno != ELOOP) return Failed("open", path);
    return Refused(absl::StrCat(path, " is a symbolic link: remove it"));
  }
  struct stat info;
  RETURN_IF_ERROR(CheckRegular(file.get(), path, &info));
  if (!IsOwn(info, geteuid()) && info.st_uid != directory.info.st_uid) {
    return Refused(absl::StrCat(path, " belongs to user ", info.st_uid, ": remove it"));
  }
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if (writes && info.st_nlink > 1) {
    return Refused(absl::StrCat(path, " has another name as well (a hard link): remove it"));
  }
  if ((flags & O_TRUNC) != 0 && ftruncate(file.get(), 0) != 0) return Failed("empty", path);
  return file;
}

absl::StatusOr<ScopedFd> OpenFileToWrite(const std::string& path, int flags, mode_t mode) {
  constexpr int kSafe = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  Walker parent({}, nullptr);
  RETURN_IF_ERROR(parent.Begin(path));
  ASSIGN_OR_RETURN(const std::string name, parent.GoToParent());
  ScopedFd made(openat(parent.at().fd.get(), name.c_str(), flags | kSafe | O_CREAT | O_EXCL, mode));
  if (made.ok()) return made;
  if (errno != EEXIST) return Failed("open", path);
  // It may be a link, which has to be one that may be followed.
  Walker walker({}, nullptr);
  RETURN_IF_ERROR(walker.Begin(path));
  RETURN_IF_ERROR(walker.Go());
  const mode_t type = walker.at().info.st_mode;
  if (S_ISDIR(type)) {
    errno = EISDIR;
    return Failed("open", path);
  }
  if (!S_ISREG(type) && !S_ISCHR(type)) {
    errno = EINVAL;
    return absl::FailedPreconditionError(absl::StrCat(path, " is neither a file nor a device"));
  }
  ScopedFd file = walker.OpenFound((flags & ~(O_CREAT | O_EXCL)) | kSafe);
  if (!file.ok()) return Failed("open", path);
  return file;
}

absl::StatusOr<ScopedFd> OpenFileToRead(const std::string& path) {
  std::optional<uid_t> linked_by;
  Walker walker({std::nullopt, "", true}, &linked_by);
  RETURN_IF_ERROR(walker.Begin(path));
  RETURN_IF_ERROR(walker.Go());
  const Place& found = walker.at();
  if (!S_ISREG(found.info.st_mode)) {
    errno = EINVAL;
    return absl::FailedPreconditionError(absl::StrCat(path, " is no regular file"));
  }
  struct statfs system;
  if (fstatfs(found.fd.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC) {
    return Refused(absl::StrCat(path, " leads to ", found.path, ", which is no file of a disk"));
  }
  if (linked_by.has_value() && found.info.st_uid != *linked_by) {
    return Refused(absl::StrCat(path, " is a link that user ", *linked_by,
                                " made, to a file of user ", found.info.st_uid));
  }
  ScopedFd file = walker.OpenFound(O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!file.ok()) return Failed("open", path);
  return file;
}

int64_t UserOfFuse(absl::string_view mounts, dev_t device) {
  const std::string number = absl::StrCat(major(device), ":", minor(device));
  // A line looks so: 36 25 0:32 / /mnt rw,nosuid - fuse.sshfs host: rw,user_id=1000,group_id=1000
  for (const absl::string_view line : absl::StrSplit(mounts, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    if (fields.size() < 4 || fields[2] != number) continue;
    const std::vector<absl::string_view> behind = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (behind.size() != 2 || !absl::StartsWith(behind[1], "fuse")) return -1;
    for (absl::string_view option : absl::StrSplit(behind[1], absl::ByAnyChar(" ,"))) {
      int64_t user = -1;
      if (absl::ConsumePrefix(&option, "user_id=") && absl::SimpleAtoi(option, &user)) return user;
    }
    return -1;
  }
  return -1;
}

}  // namespace cadre
