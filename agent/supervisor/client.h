// The agent's end of the supervisor's socket (frames.h). One thread.
#ifndef CADRE_AGENT_SUPERVISOR_CLIENT_H_
#define CADRE_AGENT_SUPERVISOR_CLIENT_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/leftovers.h"
#include "base/clock.h"
#include "base/time.h"

namespace cadre::supervisor {

// How long Adopt waits for the end of the agent before.
inline constexpr absl::Duration kAdoptLimit = absl::Seconds(2);
// A supervisor that has taken nothing for so long does not read.
inline constexpr absl::Duration kTakesNothingLimit = absl::Seconds(10);

class Client {
 public:
  // Starts `cadre-supervisor` (beside this program, or CADRE_SUPERVISOR) with posix_spawn. Must be
  // called before gRPC is initialised. `frames_version`: another one is for tests, which stand for
  // an agent of before. NOT_FOUND: no such program.
  static absl::StatusOr<std::unique_ptr<Client>> Start(uint32_t frames_version = kFramesVersion);

  // Takes over the supervisor of an agent of this user that died, which listens at `path`, with all
  // its workers. `frames_version`: that agent's, as it said in its AgentRun. `inventory` tells what
  // there is; frames about each worker can be read at once.
  // NOT_FOUND: nobody listens. UNAVAILABLE: not to be had within `limit`, since its agent lives or
  // the token is another one.
  static absl::StatusOr<std::unique_ptr<Client>> Adopt(const std::string& path,
                                                       const std::string& token,
                                                       uint32_t frames_version,
                                                       AdoptedFrame* inventory,
                                                       absl::Duration limit = kAdoptLimit);

  // Kills every worker by cgroup if the supervisor is gone; else says goodbye and closes the socket
  // (the supervisor then kills what is left and exits) and reaps it, waiting 2 s at most.
  ~Client();
  // Goes without a word, as if this process had died: where workers may outlive their agent they
  // wait for the next one. Nothing else may be called then.
  void LetGo();

  // Readable when frames may be there; watch it for POLLIN, and for POLLOUT while WantsWrite().
  int fd() const;
  bool WantsWrite() const;
  // Queues the frame and writes what the socket takes; what a supervisor of an earlier version does
  // not know is left out. RESOURCE_EXHAUSTED: over 16 MiB are queued, and it has taken none of them
  // for kTakesNothingLimit. The starts of a whole node are more than that, and come in one moment.
  absl::Status Send(Frame frame, MonoTime now = MonoNow());
  // That the supervisor speaks.
  uint32_t frames_version() const;
  absl::Status Flush(MonoTime now = MonoNow());
  // All frames that can be read without blocking. UNAVAILABLE: the supervisor is gone; its workers
  // have been killed before this returns, for 1 s at most. What SIGKILL has not ended by then is in
  // leftovers().
  absl::StatusOr<std::vector<Frame>> Read();
  const Leftovers& leftovers() const;
  pid_t pid() const;
  // Lets a supervisor go on that somebody stopped (SIGSTOP): it would neither see a worker's end
  // nor end one. Returns what happened, in words; empty: it was not stopped.
  std::string ContinueIfStopped();

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_CLIENT_H_
