// Lets root's agent work on a user's files with the rights of that user alone. Code that opens a
// name which a user may have chosen, or replaced by a link, calls RunAs().
#ifndef CADRE_AGENT_CLUSTER_AS_USER_H_
#define CADRE_AGENT_CLUSTER_AS_USER_H_

#include <sys/types.h>

#include <functional>
#include <vector>

#include "absl/status/status.h"

namespace cadre::agent {

struct Identity {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
};

// Runs `work` on this thread, which has the effective user, group and groups of `identity`
// meanwhile and no effective capability: neither files that are not the user's nor /proc of others
// are open to it. Its real user stays root, so that the user can send it no signal, which would end
// the whole process. A process that is not root's runs `work` as itself. An error: nothing was run.
absl::Status RunAs(const Identity& identity, const std::function<void()>& work);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_AS_USER_H_
