// A real supervisor with real workers, for tests: starts it, collects its frames, waits for what a
// test expects with a deadline and never by sleeping. One thread.
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

// Long enough for a loaded machine and a sanitizer; nothing that works takes this long.
inline constexpr absl::Duration kPatience = absl::Seconds(20);
inline constexpr char kKeepToken[] = "a token";

class SupervisorRig {
 public:
  // Fails the test when it cannot start. `frames_version`: that all agents speak.
  explicit SupervisorRig(uint32_t frames_version = kFramesVersion);
  ~SupervisorRig();

  Client& client() { return *client_; }
  // Ends it as the agent's own end would, destructor included.
  void Close() { client_.reset(); }
  // Ends like an agent that is killed, without a word. The supervisor has noticed.
  void Die();
  // From now on an agent that dies may be followed by another one, for this long.
  void Keep(absl::Duration time);
  // Goes on as another agent, after Die(). Forgets the frames so far.
  AdoptedFrame Adopt();
  std::string KeepPath() const { return folder_ + "/supervisor"; }
  const ReadyFrame& ready() const { return ready_; }
  // An empty folder, removed at the end.
  const std::string& folder() const { return folder_; }

  // A group that runs `script` under /bin/sh, with this environment's PATH.
  StartFrame Shell(const std::string& script, uint64_t group = 1);
  void Send(const Frame& frame);
  // Reads once, waiting for at most `patience`; false when nothing came. Collects what it read.
  bool Pump(absl::Duration patience = kPatience);
  // Reads until `done`. False, and a failure of the test, after kPatience.
  bool Until(const std::function<bool()>& done);
  // Asks `done` again whenever a file in folder(), or in that other one, changes, until it is so.
  // False, and a failure of the test, after kPatience.
  bool UntilFiles(const std::function<bool()>& done, const std::string& other = "") const;

  std::optional<ExitedFrame> Exit(uint64_t group = 1) const;
  std::optional<StartedFrame> Started(uint64_t group = 1) const;
  int AllGoneCount(uint64_t group = 1) const;
  // What came on this stream so far.
  std::string Output(uint8_t stream, uint64_t group = 1) const;
  uint64_t Dropped(uint8_t stream, uint64_t group = 1) const;

  // Starts it and waits for its end.
  ExitedFrame Run(const StartFrame& start);
  // Waits until the group has printed `count` lines on stdout, and gives them.
  std::vector<std::string> Lines(size_t count, uint64_t group = 1);
  // Stops and waits for AllGone.
  void Stop(uint32_t grace_ms = 0, uint64_t group = 1);

  std::vector<Frame> frames;

 private:
  const uint32_t frames_version_;
  // The clients that died are still this process's: their supervisor is its child.
  std::vector<std::unique_ptr<Client>> dead_;
  std::unique_ptr<Client> client_;
  ReadyFrame ready_;
  std::string folder_;
};

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& text, int mode = 0644);

// Waits on a pidfd until the process has ended (a zombie has); true at once when there is none.
bool WaitUntilDead(pid_t pid, absl::Duration patience = kPatience);

// Open descriptors of a process, sorted; empty when it is gone.
std::vector<int> OpenDescriptors(pid_t pid);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_SUPERVISOR_RIG_H_
