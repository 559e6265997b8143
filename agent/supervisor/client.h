// The agent's side of its supervisor: starts or adopts one, exchanges frames with it, and kills the
// processes that a dead one has left. One thread.
#ifndef CADRE_AGENT_SUPERVISOR_CLIENT_H_
#define CADRE_AGENT_SUPERVISOR_CLIENT_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "base/clock.h"
#include "base/time.h"

namespace cadre::supervisor {

// What a supervisor's frames reported about its groups, by which their processes are found once it
// is dead.
struct Leftovers {
  std::string supervisor_id;
  std::string cgroup;
  std::map<pid_t, uint64_t> sessions;  // of running processes, to their groups
  std::set<pid_t> killed;              // killed so far, but not reaped

  void OnFrame(const Frame& frame);
};

// Kills the processes that a dead supervisor has left. It does not go by parentage, because this
// program may have children of its own: a leftover is in the supervisor's cgroup, in a session of
// one of its groups, or carries its marker. Blocks until nothing is left, for `limit` at most.
// Reaps processes reparented to this subreaper. Returns what SIGKILL has not ended by then;
// processes in no session of a group are reported as group 0's.
std::vector<RemainsFrame> KillLeftovers(Leftovers& leftovers, absl::Duration limit);

// How long Adopt waits for the end of the earlier agent.
inline constexpr absl::Duration kAdoptLimit = absl::Seconds(2);
// A supervisor that has read nothing for this long counts as stalled.
inline constexpr absl::Duration kSupervisorStallTimeout = absl::Seconds(10);

class Client {
 public:
  // Starts `cadre-supervisor` (beside this program, or CADRE_SUPERVISOR) with posix_spawn. Must be
  // called before gRPC is initialised. `frames_version`: tests set an earlier version to act as an
  // older agent. NOT_FOUND: no such program.
  static absl::StatusOr<std::unique_ptr<Client>> Start(uint32_t frames_version = kFramesVersion);

  // Adopts the supervisor of a dead agent of this user, which listens at `path`, with all its
  // workers. `frames_version`: the dead agent's, from its AgentRun. `inventory` lists what there
  // is; frames about each worker can be read at once. NOT_FOUND: no supervisor listens.
  // UNAVAILABLE: it does not accept within `limit`, because its agent lives or the token is wrong.
  static absl::StatusOr<std::unique_ptr<Client>> Adopt(const std::string& path,
                                                       const std::string& token,
                                                       uint32_t frames_version,
                                                       AdoptedFrame* inventory,
                                                       absl::Duration limit = kAdoptLimit);

  // If the supervisor is gone, kills every worker by cgroup. Otherwise sends Goodbye and closes the
  // socket (the supervisor then kills all groups and exits) and reaps it, waiting 2 s at most.
  ~Client();
  // Closes without Goodbye, as if this process had died: if workers may outlive their agent they
  // wait for the next one. No other method may be called afterwards.
  void Release();

  // Readable when frames may be there; poll it for POLLIN, and for POLLOUT while WantsWrite().
  int fd() const;
  bool WantsWrite() const;
  // Queues the frame and writes what the socket accepts; frames that a supervisor of an earlier
  // version does not know are left out. RESOURCE_EXHAUSTED: over 16 MiB are queued, and the
  // supervisor has read none of them for kSupervisorStallTimeout. (The starts of a whole node are
  // more than that, and are sent at once.)
  absl::Status Send(const Frame& frame, MonoTime now = MonoNow());
  // The version that the supervisor speaks.
  uint32_t frames_version() const;
  absl::Status Flush(MonoTime now = MonoNow());
  // All frames that can be read without blocking. UNAVAILABLE: the supervisor is gone; its workers
  // have been killed before this returns, which takes 1 s at most. Processes that SIGKILL has not
  // ended by then are in leftovers().
  absl::StatusOr<std::vector<Frame>> Read();
  const Leftovers& leftovers() const;
  pid_t pid() const;
  // Continues a supervisor that was stopped by SIGSTOP: while stopped it could neither see a
  // worker's exit nor stop a worker. Returns a message; empty if it was not stopped.
  std::string ContinueIfStopped();

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_CLIENT_H_
