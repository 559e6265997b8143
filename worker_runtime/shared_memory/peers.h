// The ranks of one communicator on one machine: their control blocks, whether their processes live,
// and why one of them gave up.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_PEERS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_PEERS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "cadre/status.h"
#include "worker_runtime/shared_memory/control_block.h"

namespace cadre::shared_memory {

// How often a sleeper looks after the others: a death is noticed within twice this.
inline constexpr int kLivenessMillis = 20;

// Why a rank gave up; the others repeat it, so that all name the same culprit.
enum class Reason : uint8_t { kNone, kCaller, kGone, kLate, kMismatch };

// Thread safe.
class Peers {
 public:
  // `blocks[r]` is rank r's control block; `pids[r]` its process. The blocks must outlive this.
  Peers(int rank, std::vector<ControlBlock*> blocks, const std::vector<pid_t>& pids);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // RESOURCE_EXHAUSTED: there were no descriptors to watch the others by. Else OK.
  const Status& status() const { return status_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  ControlBlock& block(int rank) const { return *blocks_[rank]; }
  ControlBlock& own() const { return *blocks_[rank_]; }
  const std::vector<pid_t>& pids() const { return pids_; }

  // Looks a spinner takes before it sleeps, and how often it lets others run in between: where
  // ranks share cores, spinning takes time from the one that is waited for.
  int spins() const { return spins_; }
  int yields() const { return yields_; }

  // Whether to go on waiting for `peer`. ABORTED: this rank gave up. Else what `peer` gave up for
  // (repeats its reason), or UNAVAILABLE: its process is gone. One that aborted is given
  // kVisibleExitGrace from when that was seen first; not `at_last`, nor after a rank's death, of
  // which it may be one more victim.
  Status Check(int peer, bool at_last = false) const;

  // This rank gives up; whoever waits for it notices, and those that sleep at a barrier at once.
  // The first reason stays.
  void GiveUp(Reason reason, int culprit);
  // Gives up for what Check(peer) returned: blames the rank that `peer` blames, if it does.
  void GiveUpFor(int peer, const Status& checked);

 private:
  static constexpr int kNoPidfd = -1;
  static constexpr int kGonePidfd = -2;

  int Watch(pid_t pid);
  // Ranks that are threads of this process are not.
  bool IsGone(int peer) const;
  // Whether to go on waiting for a rank that aborted.
  bool MayStillEnd(int culprit) const;
  // Whether some rank's process is gone that had not given up.
  bool HasAnyDied() const;
  Status RepeatReason(int peer, uint32_t gave_up) const;

  const int rank_;
  const std::vector<ControlBlock*> blocks_;
  const std::vector<pid_t> pids_;
  // By which their ends are seen: kNoPidfd where the process's id is asked instead.
  std::vector<int> pidfds_;
  Status status_;
  const int spins_;
  const int yields_;
  // When an abort was seen first, in microseconds; 0: none was.
  mutable std::atomic<int64_t> saw_abort_{0};
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_PEERS_H_
