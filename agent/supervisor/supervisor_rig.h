// Test fixture: a real supervisor with real workers. It starts the supervisor, collects its frames,
// and waits for expected states with a deadline instead of sleeping. One thread.
#ifndef CADRE_AGENT_SUPERVISOR_SUPERVISOR_RIG_H_
#define CADRE_AGENT_SUPERVISOR_SUPERVISOR_RIG_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/supervisor/client.h"
#include "agent/supervisor/frames.h"

namespace cadre::supervisor {

// Long enough for a loaded machine and a sanitizer.
inline constexpr absl::Duration kRigTimeout = absl::Seconds(20);
inline constexpr char kKeepToken[] = "a token";

class SupervisorRig {
 public:
  // Fails the test if it cannot start. `frames_version` is used by all its agents.
  explicit SupervisorRig(uint32_t frames_version = kFramesVersion);
  ~SupervisorRig();

  Client& client() { return *client_; }
  // Ends the client as an agent that exits would, destructor included.
  void Close() { client_.reset(); }
  // Ends it like an agent that is killed, without Goodbye. Returns when the supervisor has noticed.
  void Die();
  // From now on, an agent that dies may be replaced by another one for this long.
  void Keep(absl::Duration time);
  // Continues as another agent, after Die(). Forgets the frames so far.
  AdoptedFrame Adopt();
  std::string KeepPath() const { return folder_ + "/supervisor"; }
  const ReadyFrame& ready() const { return ready_; }
  // A temporary directory, removed at the end.
  const std::string& folder() const { return folder_; }

  // A frame for a group that runs `script` under /bin/sh, with this environment's PATH.
  StartFrame Shell(const std::string& script, uint64_t group = 1);
  void Send(const Frame& frame);
  // Reads once, waiting for at most `timeout`, and collects the frames; returns false if none
  // came.
  bool Pump(absl::Duration timeout = kRigTimeout);
  // Reads until `done`. Returns false, and fails the test, after kRigTimeout.
  bool Until(const std::function<bool()>& done);
  // Evaluates `done` whenever a file in folder() or `other` changes, until it is true. Returns
  // false, and fails the test, after kRigTimeout.
  bool UntilFiles(const std::function<bool()>& done, const std::string& other = "") const;

  std::optional<ExitedFrame> Exit(uint64_t group = 1) const;
  std::optional<StartedFrame> Started(uint64_t group = 1) const;
  int AllGoneCount(uint64_t group = 1) const;
  // The output received on this stream so far.
  std::string Output(uint8_t stream, uint64_t group = 1) const;
  uint64_t Dropped(uint8_t stream, uint64_t group = 1) const;

  // Starts the group and waits for its exit.
  ExitedFrame Run(const StartFrame& start);
  // Waits until the group has printed `count` lines on stdout, and returns them.
  std::vector<std::string> Lines(size_t count, uint64_t group = 1);
  // Stops the group and waits for AllGone.
  void Stop(uint32_t grace_ms = 0, uint64_t group = 1);

  std::vector<Frame> frames;

 private:
  const uint32_t frames_version_;
  // Clients that died; they are kept because their supervisor is this process's child.
  std::vector<std::unique_ptr<Client>> dead_;
  std::unique_ptr<Client> client_;
  ReadyFrame ready_;
  std::string folder_;
};

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& text, int mode = 0644);

// Waits on a pidfd until the process has ended (zombies count); true at once if there is none.
bool WaitUntilDead(pid_t pid, absl::Duration timeout = kRigTimeout);

// Open descriptors of a process, sorted; empty if it is gone.
std::vector<int> OpenDescriptors(pid_t pid);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_SUPERVISOR_RIG_H_
