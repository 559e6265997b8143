// A barrier of the ranks that share one machine's memory: a rank that waits spins briefly, then
// sleeps in the kernel, waking now and then to see whether those it waits for still live.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_RANK_BARRIER_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_RANK_BARRIER_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "cadre/status.h"
#include "worker_runtime/shared_memory/futex.h"
#include "worker_runtime/shared_memory/peers.h"

namespace cadre::shared_memory {

// One thread at a time.
class RankBarrier {
 public:
  // `peers` must outlive this.
  explicit RankBarrier(Peers* peers);

  Peers& peers() const { return peers_; }
  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  ControlBlock& block(int rank) const { return peers_.block(rank); }
  ControlBlock& own() const { return own_; }
  // In rank order.
  const std::vector<ControlBlock*>& others() const { return others_; }

  // Begins the next operation; the others see its number with the next Arrive().
  void BeginOperation() { ++operations_; }
  // Arrives at the next barrier: all that this rank wrote before is seen by whoever waits for it,
  // and those that sleep are woken.
  void Arrive() {
    own_.progress.store((uint64_t{operations_} << 32) | ++arrivals_, std::memory_order_release);
    if (own_.sleepers.load(std::memory_order_relaxed) != 0) FutexWakeAll(own_.futex());
  }
  // Arrive() may miss a rank that is just going to sleep: a fence in it would wait until the store
  // has left this core. This misses none; it follows the last Arrive() of an operation.
  void WakeLateSleepers() {
    // With the sleeper's own it makes sure that either the sleeper sees the store, or this the
    // sleeper.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (own_.sleepers.load(std::memory_order_relaxed) != 0) FutexWakeAll(own_.futex());
  }
  // Whether all have arrived at the barrier that this rank arrived at last, without sleeping.
  bool SpinForAll() {
    for (const ControlBlock* other : others_) {
      if (!HasArrived(*other)) return SpinLonger();
    }
    return true;
  }
  // Waits until they have.
  //   UNAVAILABLE        a rank's process is gone; says which
  //   ABORTED            a rank gave up, or this one did
  //   DEADLINE_EXCEEDED  names the ranks that did not arrive, and what each did last
  // This rank has then given up, and those that wait for it get the same reason.
  Status WaitForAll(MonoTime deadline);

 private:
  bool SpinLonger();
  bool HasArrived(const ControlBlock& block) const {
    return static_cast<int32_t>(block.arrivals() - arrivals_) >= 0;
  }
  bool HasArrived(int rank) const { return HasArrived(block(rank)); }
  Status SleepOn(int peer);
  Status CheckMissing(bool at_last = false);
  int FirstMissing() const;
  std::string Missing() const;

  Peers& peers_;
  ControlBlock& own_;
  std::vector<ControlBlock*> others_;
  uint32_t arrivals_ = 0;
  uint32_t operations_ = 0;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_RANK_BARRIER_H_
