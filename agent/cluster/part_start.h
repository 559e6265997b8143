// From a part of a cluster's job to the launcher that does it: whose it is, its files, its command
// line. Blocks on the file system and the user database; any thread.
#ifndef CADRE_AGENT_CLUSTER_PART_START_H_
#define CADRE_AGENT_CLUSTER_PART_START_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/cluster/gpu_devices.h"
#include "agent/supervisor/frames.h"
#include "base/tokens/renewed_token.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

struct PartStartOptions {
  // The cadre program.
  std::string launcher;
  // --rdzv-endpoint.
  std::string server;
  // The cluster's; each launcher gets one made from it, for its part alone.
  std::shared_ptr<RenewedToken> token;
  // The server speaks clear text.
  bool insecure = false;
  // Both may be empty. Of the first, launchers get a copy of ca.pem: what else is there is the
  // agent's own.
  std::string tls_dir;
  std::string local_addr;
  // The agent's environment, of which launchers get little.
  std::map<std::string, std::string> environment;
  // Where each part has a directory, for its user alone: a PartsDirectory.
  std::string directory;
  // Jobs of root are run as well.
  bool root_too = false;
  // The node has GPUs, so that a part without any must not see them.
  bool has_gpus = false;
  // Those that it gives to parts.
  std::map<uint32_t, NodeGpu> gpus;
};

// In a part's directory: the launcher's token, and the authority whose certificate the server has.
inline constexpr char kPartToken[] = "token";
inline constexpr char kPartCa[] = "ca.pem";

struct UserEntry {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string home;
  std::string shell;
};

// NOT_FOUND: this machine has no such user.
absl::StatusOr<UserEntry> FindUser(const std::string& name);
// Of this process.
absl::StatusOr<UserEntry> ThisUser();

// A new file that only `user`, of whom the numbers count, can read.
absl::Status WritePrivate(const std::string& path, absl::string_view content,
                          const UserEntry& user);

// Writes what the launcher reads and gives the order that starts it, as `part.user` and in a group
// that the caller chooses; another user than this process's only where it is root. `gpus`: those
// that it gets, of options.gpus. `server_id`: of the server that ordered it.
absl::StatusOr<supervisor::StartFrame> PreparePart(const PartStartOptions& options,
                                                   const v1::StartPart& part,
                                                   const std::vector<uint32_t>& gpus,
                                                   uint64_t server_id);
// A directory of PreparePart that was renamed and waits to be removed.
struct AsidePart {
  std::string path;  // empty: there was no directory
  uid_t uid = 0;     // of its owner
};
// Renames the part's directory, which takes a moment. The user decides how long removing it takes
// (part_removal.h), so that another thread does it.
AsidePart SetAsidePart(const PartStartOptions& options, uint64_t id);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_PART_START_H_
