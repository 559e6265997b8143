#include "agent/cluster/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/cluster/part_start.h"
#include "agent/run_files.h"
#include "base/scoped_fd.h"

namespace cadre::agent {
namespace {

// A message holds 1 MiB.
constexpr uint32_t kMostBytes = 256 << 10;

// This thread opens files as somebody else, for as long as this lives. The C library would change
// the groups of all threads; the kernel knows them by thread.
class AsUser {
 public:
  explicit AsUser(const UserEntry& user) : groups_(getgroups(0, nullptr)) {
    groups_.resize(std::max(0, getgroups(static_cast<int>(groups_.size()), groups_.data())));
    std::vector<gid_t> own(kMostGroups);
    int count = kMostGroups;
    getgrouplist(user.name.c_str(), user.gid, own.data(), &count);
    own.resize(std::clamp(count, 0, kMostGroups));
    SetGroups(own);
    gid_ = setfsgid(user.gid);
    uid_ = setfsuid(user.uid);
  }
  ~AsUser() {
    setfsuid(uid_);
    setfsgid(gid_);
    SetGroups(groups_);
  }
  AsUser(const AsUser&) = delete;
  AsUser& operator=(const AsUser&) = delete;

 private:
  static constexpr int kMostGroups = 1024;
  static void SetGroups(const std::vector<gid_t>& groups) {
    syscall(SYS_setgroups, groups.size(), groups.data());
  }

  std::vector<gid_t> groups_;
  gid_t gid_;
  uid_t uid_;
};

// Never blocks on what is no file.
int Open(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

}  // namespace

absl::StatusOr<v1::LogChunk> ReadLogFile(const v1::ReadLog& read, bool root_too) {
  const std::string run = RunDirectory(read.dir(), read.job(), read.run());
  const std::string path = absl::StrCat(RankDirectory(run, read.generation(), read.rank()),
                                        read.standard_error() ? "/stderr.log" : "/stdout.log");
  int opened = -1;
  if (geteuid() == 0) {
    const absl::StatusOr<UserEntry> found = FindUser(read.user());
    // As an error of its own: NOT_FOUND would mean that the file may still come.
    if (!found.ok()) return absl::FailedPreconditionError(found.status().message());
    const UserEntry& user = *found;
    if (user.uid == 0 && !root_too) {
      return absl::PermissionDeniedError("jobs of root are not run here, nor read");
    }
    const AsUser as_user(user);
    opened = Open(path);
  } else {
    opened = Open(path);
  }
  if (opened < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  const ScopedFd file(opened);
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no regular file"));
  }
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  v1::LogChunk chunk;
  chunk.set_offset(read.tail() == 0 ? read.offset() : size - std::min(size, read.tail()));
  std::string& bytes = *chunk.mutable_bytes();
  bytes.resize(std::min(read.limit(), kMostBytes));
  ssize_t got = 0;
  do {
    got = pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(chunk.offset()));
  } while (got < 0 && errno == EINTR);
  if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  bytes.resize(got);
  chunk.set_file(absl::StrCat(info.st_dev, ".", info.st_ino));
  return chunk;
}

}  // namespace cadre::agent
