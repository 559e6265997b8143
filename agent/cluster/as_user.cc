#include "agent/cluster/as_user.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cadre::agent {
namespace {

// The C library would change those of all threads; the kernel knows them by thread.
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
