// The launcher of an allocation (one job's share of this node), which is `cadre run` as the job's
// user:
//
//   PrepareLauncher       its files, its user, its command line: the frame that starts it
//   AllocationGroups      which of the supervisor's groups it is
//   CredentialRenewal     its token and certificate authority, as long as it runs
//   DescribeLauncherEnd   what the server is told when it has ended
//   RetireDirectory       its files afterwards
#ifndef CADRE_AGENT_CLUSTER_ALLOCATION_LAUNCHER_H_
#define CADRE_AGENT_CLUSTER_ALLOCATION_LAUNCHER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/cluster/gpu_devices.h"
#include "agent/cluster/users.h"
#include "agent/supervisor/frames.h"
#include "base/check.h"
#include "base/threads/file_thread.h"
#include "base/threads/repeating_thread.h"
#include "base/tokens/renewed_token.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

struct LauncherOptions {
  // The cadre program.
  std::string launcher;
  // The server's endpoint, for --rdzv-endpoint.
  std::string server;
  // The cluster's token; each launcher gets a token derived from it, valid for its allocation
  // alone.
  std::shared_ptr<RenewedToken> token;
  // The server uses no encryption.
  bool insecure = false;
  // Both may be empty. Of tls_dir, launchers get a copy of ca.pem only; the other files are the
  // agent's own.
  std::string tls_dir;
  std::string local_addr;
  // The agent's environment, of which launchers get only a few variables.
  std::map<std::string, std::string> environment;
  // The path of an AllocationsDirectory, where each allocation has a directory that only its user
  // can read.
  std::string directory;
  // Jobs of root are accepted too.
  bool root_too = false;
  // The node has GPUs, which must be hidden from an allocation that was given none.
  bool has_gpus = false;
  // The GPUs that are given to allocations, by index.
  std::map<uint32_t, NodeGpu> gpus;
};

// Files in an allocation's directory: the launcher's token, and the CA of the server's certificate.
inline constexpr char kLauncherToken[] = "token";
inline constexpr char kLauncherCa[] = "ca.pem";

// Writes a new file that only `user` can read. Only the uid and gid of `user` are used.
absl::Status WritePrivate(const std::string& path, absl::string_view content, const UserEntry& user,
                          mode_t mode = 0600);

// A file that WritePrivate has written. The user may have changed its content, but nothing else
// about it.
struct GivenFile {
  std::string content;
  UserEntry owner;  // only uid and gid are set
};
// nullopt: there is none.
std::optional<GivenFile> ReadGivenFile(const std::string& path);
// Replaces it atomically. Returns false if it could not; the old file is then still there.
bool ReplaceGivenFile(const std::string& path, const GivenFile& file);

// Writes the files that the launcher reads and returns the frame that starts it as `start.user`;
// the caller sets the group. A user other than this process's requires root. `gpus`: the GPUs it
// gets, of options.gpus. `server_id`: the server that ordered the start. Blocks on the file system
// and the user database; any thread.
absl::StatusOr<supervisor::StartFrame> PrepareLauncher(const LauncherOptions& options,
                                                       const v1::StartPart& start,
                                                       const std::vector<uint32_t>& gpus,
                                                       uint64_t server_id);

// The blame for a launcher that could not be started. A full disk, too few descriptors or
// processes, and a file system or user database that does not answer are temporary, so neither job
// nor node is blamed. Pure.
v1::PartBlame BlameForUnstarted(absl::StatusCode code);

// The report on an allocation whose launcher has ended, without the allocation's id. Describes the
// exit in one line, and assigns the blame: a launcher that exits with a usage or spec error would
// do so on every node; one that exits with "try again later" may be started again on the same node.
// Pure.
v1::PartReport DescribeLauncherEnd(const supervisor::ExitedFrame& exited);

// A directory made by PrepareLauncher that was renamed and waits to be removed.
struct RetiredDirectory {
  std::string path;  // empty: there was no directory
  uid_t uid = 0;     // the user who owns the directory
};
// Renames the allocation's directory, which takes a moment. How long its removal takes depends on
// what the user left (RemoveAsOwners), so another thread does that.
RetiredDirectory RetireDirectory(const LauncherOptions& options, uint64_t id);

// Maps allocations to the supervisor's process groups (agent/supervisor/frames.h) that run their
// launchers. Pure; one thread.
class AllocationGroups {
 public:
  // Assigns a group to the allocation, which must have none. Group numbers are never reused, not
  // even for the same allocation.
  uint64_t Add(uint64_t allocation) {
    const bool added = groups_.emplace(allocation, ++last_).second;
    CADRE_CHECK(added, "allocation ", allocation, " runs already");
    allocations_.emplace(last_, allocation);
    return last_;
  }
  // Called once no process of the allocation is left.
  void Remove(uint64_t allocation) {
    const auto found = groups_.find(allocation);
    CADRE_CHECK(found != groups_.end(), "allocation ", allocation, " does not run");
    allocations_.erase(found->second);
    groups_.erase(found);
  }

  // nullopt: there is none.
  std::optional<uint64_t> GroupOf(uint64_t allocation) const { return Find(groups_, allocation); }
  std::optional<uint64_t> AllocationOf(uint64_t group) const { return Find(allocations_, group); }

 private:
  using Numbers = std::map<uint64_t, uint64_t>;
  static std::optional<uint64_t> Find(const Numbers& numbers, uint64_t key) {
    const auto found = numbers.find(key);
    return found == numbers.end() ? std::nullopt : std::make_optional(found->second);
  }

  uint64_t last_ = 0;
  Numbers groups_;       // by allocation
  Numbers allocations_;  // by group
};

// Renews the credentials of the launchers that run here: when the agent's token is replaced, they
// get tokens made from the new one; when its certificate authority is replaced, they get the new
// one. Launchers read both again for each new connection. The users' tokens of batch jobs and steps
// (slurm_launch.h) are also renewed before they expire.
//
// Its own thread checks every second. It blocks on no file system but that of the allocations'
// directories.
class CredentialRenewal {
 public:
  // `log` receives lines for the agent's operator, on that thread. May be null.
  explicit CredentialRenewal(LauncherOptions options,
                             std::function<void(const std::string&)> log = nullptr);
  CredentialRenewal(const CredentialRenewal&) = delete;
  CredentialRenewal& operator=(const CredentialRenewal&) = delete;

  void Start();
  // Checks once; for tests, before Start().
  void RenewOnce(absl::Time now = absl::Now());

 private:
  // Returns whether the token was replaced.
  bool RenewToken(const std::string& directory);

  const LauncherOptions options_;
  const std::function<void(const std::string&)> log_;
  std::string token_;
  uint64_t checks_ = 0;
  FileThread files_{{}};  // for the certificate authority
  // Earlier tokens. An allocation that starts while the token is replaced may have got one made
  // from them.
  std::vector<std::string> former_;
  // Destroyed first, since its thread uses the other members.
  std::optional<RepeatingThread> thread_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_ALLOCATION_LAUNCHER_H_
