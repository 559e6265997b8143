// The users of this machine, for an agent that runs as root: who they are, and access to their
// files with the rights of that user alone. Code that opens a path which a user may have chosen, or
// replaced by a link, must call RunAs(). Blocks on the user database; any thread.
#ifndef CADRE_AGENT_CLUSTER_USERS_H_
#define CADRE_AGENT_CLUSTER_USERS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre::agent {

struct UserEntry {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string home;
  std::string shell;
};

// NOT_FOUND: this machine has no such user.
absl::StatusOr<UserEntry> FindUser(const std::string& name);
// The user that this process runs as.
absl::StatusOr<UserEntry> ThisUser();

struct Identity {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
};

// Runs `work` on this thread, which meanwhile has the effective user, group and groups of
// `identity` and no effective capability, so that it can open neither files that the user may not
// open nor /proc of other users. Its real user stays root, so that the user cannot send it a
// signal, which would end the whole process. A process that does not run as root runs `work` as
// itself. If an error is returned, `work` did not run.
absl::Status RunAs(const Identity& identity, const std::function<void()>& work);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_USERS_H_
