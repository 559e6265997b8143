#include "agent/cluster/log_file.h"

#include <errno.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/cluster/as_user.h"
#include "agent/cluster/part_start.h"
#include "agent/run_files.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

// A message holds 1 MiB.
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
    // As an error of its own: NOT_FOUND would mean that the file may still come.
    if (!found.ok()) return absl::FailedPreconditionError(found.status().message());
    const UserEntry& user = *found;
    if (user.uid == 0 && !root_too) {
      return absl::PermissionDeniedError("jobs of root are not run here, nor read");
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
