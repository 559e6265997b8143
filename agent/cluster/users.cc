#include "agent/cluster/users.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

// The buffer for the strings of a user's passwd entry.
constexpr size_t kEntryBytes = 64 << 10;

absl::StatusOr<UserEntry> EntryOf(const passwd* found, const std::string& name) {
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat("this machine has no user ", name));
  }
  return UserEntry{found->pw_name, found->pw_uid, found->pw_gid, found->pw_dir, found->pw_shell};
}

}  // namespace

absl::StatusOr<UserEntry> FindUser(const std::string& name) {
  // libc skips a user database as if the user were not in it when no descriptor is free, so one is
  // opened first.
  const int spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (spare < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot look user ", name, " up: ", ErrnoText(errno)));
  }
  close(spare);
  std::vector<char> text(kEntryBytes);
  passwd entry = {};
  passwd* found = nullptr;
  // getpwnam_r, because several threads may call this at once.
  const int error = getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &found);
  // A database that has no such user sets no error, ENOENT or ESRCH; other errors mean that the
  // lookup failed.
  if (found == nullptr && error != 0 && error != ENOENT && error != ESRCH) {
    return absl::UnavailableError(
        absl::StrCat("cannot look user ", name, " up: ", ErrnoText(error)));
  }
  return EntryOf(found, name);
}

absl::StatusOr<UserEntry> ThisUser() {
  return EntryOf(getpwuid(geteuid()), absl::StrCat(geteuid()));
}

namespace {

// These are system calls because the C library's functions change the groups and users of all
// threads, while the kernel keeps them by thread.
bool SetGroups(const std::vector<gid_t>& groups) {
  return syscall(SYS_setgroups, groups.size(), groups.data()) == 0;
}

bool SetEffectiveGroup(gid_t gid) { return syscall(SYS_setresgid, -1, gid, -1) == 0; }

// When the effective user changes from root to another one, the kernel clears the effective
// capabilities; it restores them when the user becomes root again (capabilities(7)). The thread's
// user for file access changes with it.
bool SetEffectiveUser(uid_t uid) { return syscall(SYS_setresuid, -1, uid, -1) == 0; }

}  // namespace

absl::Status RunAs(const Identity& identity, const std::function<void()>& work) {
  if (geteuid() != 0 || identity.uid == 0) {
    work();
    return absl::OkStatus();
  }
  const gid_t group = getegid();
  std::vector<gid_t> groups(64 << 10);
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  if (count < 0) return absl::ErrnoToStatus(errno, "cannot read this process's groups");
  groups.resize(static_cast<size_t>(count));
  absl::Status status;
  if (SetGroups(identity.groups) && SetEffectiveGroup(identity.gid) &&
      SetEffectiveUser(identity.uid)) {
    work();
  } else {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot act as user ", identity.uid));
  }
  // The thread works for other users later, so it must not keep this one's rights.
  const bool back = SetEffectiveUser(0) && SetEffectiveGroup(group) && SetGroups(groups);
  CADRE_CHECK(back, "cannot act as root again after user ", identity.uid);
  return status;
}

}  // namespace cadre::agent
