// Where the ranks of one machine wait for each other: spin briefly, then sleep in the kernel,
// waking now and then to see whether those waited for still live.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_RANK_BARRIER_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_RANK_BARRIER_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/time.h"
#include "worker_runtime/shared_memory/futex.h"
#include "worker_runtime/shared_memory/peers.h"

namespace cadre::shared_memory {

// One thread at a time.
class Meeting {
 public:
  // `peers` must outlive this.
  explicit Meeting(Peers* peers);

  Peers& peers() const { return peers_; }
  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  RankLine& line(int rank) const { return peers_.line(rank); }
  RankLine& own() const { return own_; }
  // In rank order.
  const std::vector<RankLine*>& others() const { return others_; }

  // Begins the next operation, which is told from the next meeting on.
  void BeginOperation() { ++operations_; }
  // Comes to the next meeting: all that this rank wrote before is seen by whoever waits for it, and
  // who sleeps is woken.
  void Arrive() {
    own_.progress.store((uint64_t{operations_} << 32) | ++meetings_, std::memory_order_release);
    if (own_.sleepers.load(std::memory_order_relaxed) != 0) FutexWakeAll(own_.futex());
  }
  // Arrive() may miss who is just going to sleep: a fence in it would wait until the store has left
  // this core. This does not miss them; it follows the last Arrive() of an operation.
  void WakeLateSleepers() {
    // With the sleeper's own it makes sure that either the sleeper sees the store, or this the
    // sleeper.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (own_.sleepers.load(std::memory_order_relaxed) != 0) FutexWakeAll(own_.futex());
  }
  // Whether all have come to the meeting this rank came to last, without sleeping.
  bool SpinForAll() {
    for (const RankLine* other : others_) {
      if (!HasCome(*other)) return SpinLonger();
    }
    return true;
  }
  // Waits until they have.
  //   UNAVAILABLE        a rank's process is gone; says which
  //   ABORTED            a rank gave up, or this one did
  //   DEADLINE_EXCEEDED  names the ranks that did not come, and what each did last
  // This rank has then given up, and whoever waits for it is told the same.
  absl::Status WaitForAll(MonoTime deadline);

 private:
  bool SpinLonger();
  bool HasCome(const RankLine& line) const {
    return static_cast<int32_t>(line.meetings() - meetings_) >= 0;
  }
  bool HasCome(int rank) const { return HasCome(line(rank)); }
  absl::Status SleepOn(int peer);
  absl::Status CheckMissing(bool at_last = false);
  int FirstMissing() const;
  std::string Missing() const;

  Peers& peers_;
  RankLine& own_;
  std::vector<RankLine*> others_;
  uint32_t meetings_ = 0;
  uint32_t operations_ = 0;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_RANK_BARRIER_H_
