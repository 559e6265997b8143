// The ranks of one communicator on one machine: their control blocks, whether their processes are
// alive, why one of them gave up, and how they wait for each other and send messages.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_PEERS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_PEERS_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "cadre/communicator.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/shared_memory/futex.h"

namespace cadre::shared_memory {

enum class Collective : uint8_t {
  kNone,
  kAllReduce,
  kReduce,
  kReduceScatter,
  kBroadcast,
  kAllGather,
  kAllGatherVarying,
  kReduceScatterVarying,
  kBarrier
};

// The call that a rank is about to make. Ranks whose calls differ are not running the same program.
struct CollectiveCall {
  Collective kind = Collective::kNone;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  // The root rank. In collectives without one it is 0, or a fingerprint of the counts of all ranks.
  uint32_t root = 0;
  uint64_t count = 0;

  friend bool operator==(const CollectiveCall& a, const CollectiveCall& b) {
    return a.kind == b.kind && a.type == b.type && a.op == b.op && a.root == b.root &&
           a.count == b.count;
  }
};

// Returns text such as "an all-reduce (sum) of 4 float32".
std::string Describe(const CollectiveCall& call);

// Returns the FNV-1a hash of counts that must be equal on all ranks.
uint32_t FingerprintOf(Span<const size_t> counts);

// A rank's control block: a few words of shared memory in which the rank publishes its next call
// and its progress. Only its own rank writes to it, except to the count of sleepers.
struct ControlBlock {
  // The lower half counts the barriers at which this rank has arrived, and is the futex on which
  // others sleep. The upper half counts the operations that it has begun. It has a cache line of
  // its own, which its rank writes and never reads: the line is in the cache of the core that read
  // it last, and fetching it back takes as long as publishing the new value.
  alignas(64) std::atomic<uint64_t> progress;
  // The number of ranks that sleep on `progress`. It shares its line with words written as rarely.
  alignas(64) std::atomic<uint32_t> sleepers;
  // Set once, when this rank gives up: a Reason and, in the bits above it, the rank that it blames.
  std::atomic<uint32_t> gave_up;
  // The current operation, valid from its first barrier to its last. A training loop repeats the
  // same call, so every core keeps its copy of these.
  alignas(64) uint32_t version;  // changes whenever the words below change
  uint32_t allocation;           // the registered buffer, or kNotRegistered
  uint64_t offset;               // the buffer's offset in the allocation
  double factor;                 // multiplies this rank's elements
  CollectiveCall call;

  uint32_t arrivals() const {
    return static_cast<uint32_t>(progress.load(std::memory_order_acquire));
  }
  uint32_t operations() const {
    return static_cast<uint32_t>(progress.load(std::memory_order_acquire) >> 32);
  }
  std::atomic<uint32_t>* futex() { return reinterpret_cast<std::atomic<uint32_t>*>(&progress); }
};
static_assert(sizeof(ControlBlock) == 192, "three cache lines");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half comes first");

inline constexpr uint32_t kNotRegistered = 0xffffffffu;

// A sleeping rank checks the others this often, so a death is noticed within twice this time.
inline constexpr int kLivenessMillis = 20;

// Why a rank gave up. The others repeat the reason, so that all name the same rank.
enum class Reason : uint8_t { kNone, kCaller, kGone, kLate, kMismatch };

// Thread safe.
class Peers {
 public:
  // `blocks[r]` is rank r's control block; `pids[r]` its process. The blocks must outlive this.
  Peers(int rank, std::vector<ControlBlock*> blocks, const std::vector<pid_t>& pids);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // RESOURCE_EXHAUSTED: there are no descriptors for watching the other processes. Otherwise OK.
  const Status& status() const { return status_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  ControlBlock& block(int rank) const { return *blocks_[rank]; }
  ControlBlock& own() const { return *blocks_[rank_]; }
  const std::vector<pid_t>& pids() const { return pids_; }

  // How often a waiting rank polls before it sleeps, and how often it yields its core in between.
  // Where ranks share cores, spinning takes time from the rank that is waited for.
  int spins() const { return spins_; }
  int yields() const { return yields_; }

  // Returns OK if this rank should go on waiting for `peer`. ABORTED: this rank gave up. Otherwise
  // the reason for which `peer` gave up, or UNAVAILABLE: its process is gone. If a rank aborted, OK
  // is returned until kVisibleExitGrace after that was first seen, because its process may be
  // ending; not with `at_last`, and not once a rank has died, because the abort may be a
  // consequence of that.
  Status Check(int peer, bool at_last = false) const;

  // Makes this rank give up. Ranks that wait for it notice, and those that sleep at a barrier wake
  // at once. The first reason is kept.
  void GiveUp(Reason reason, int culprit);
  // Gives up for the error of Check(peer). Blames the rank that `peer` blames, or else `peer`.
  void GiveUpFor(int peer, const Status& checked);

 private:
  static constexpr int kNoPidfd = -1;
  static constexpr int kGonePidfd = -2;

  int Watch(pid_t pid);
  // Returns true if the peer's process is gone; always false for a rank that is a thread of this
  // one.
  bool IsGone(int peer) const;
  // Returns true if this rank should go on waiting although `culprit` aborted.
  bool MayStillEnd(int culprit) const;
  // Returns true if the process of a rank is gone that had not given up.
  bool HasAnyDied() const;
  Status RepeatReason(int peer, uint32_t gave_up) const;

  const int rank_;
  const std::vector<ControlBlock*> blocks_;
  const std::vector<pid_t> pids_;
  // Watch the end of each process; kNoPidfd where kill(pid, 0) is used instead.
  std::vector<int> pidfds_;
  Status status_;
  const int spins_;
  const int yields_;
  // When an abort was first seen, in microseconds; 0 if none was.
  mutable std::atomic<int64_t> saw_abort_{0};
};

// A barrier of ranks that share one machine's memory. A waiting rank spins briefly and then sleeps
// in the kernel, waking at intervals to check whether the ranks it waits for are alive.
//
// One thread at a time.
class RankBarrier {
 public:
  // `peers` must outlive this object.
  explicit RankBarrier(Peers* peers);

  Peers& peers() const { return peers_; }
  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  ControlBlock& block(int rank) const { return peers_.block(rank); }
  ControlBlock& own() const { return own_; }
  // The other ranks' control blocks, in rank order.
  const std::vector<ControlBlock*>& others() const { return others_; }

  // Begins the next operation. The others see its number with the next Arrive().
  void BeginOperation() { ++operations_; }
  // Arrives at the next barrier. Ranks that wait for it see everything that this rank wrote before,
  // and sleeping ones are woken.
  void Arrive() {
    own_.progress.store((uint64_t{operations_} << 32) | ++arrivals_, std::memory_order_release);
    if (own_.sleepers.load(std::memory_order_relaxed) != 0) FutexWakeAll(own_.futex());
  }
  // Wakes the ranks that Arrive() may have missed because they were just going to sleep. Arrive()
  // has no fence, which would wait until the store has left this core. Call this after an
  // operation's last Arrive().
  void WakeLateSleepers() {
    // Together with the sleeper's fence, this ensures that the sleeper sees the store or this
    // thread sees the sleeper.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (own_.sleepers.load(std::memory_order_relaxed) != 0) FutexWakeAll(own_.futex());
  }
  // Returns true if all ranks have arrived at this rank's last barrier. It spins but does not
  // sleep.
  bool SpinForAll() {
    for (const ControlBlock* other : others_) {
      if (!HasArrived(*other)) return SpinLonger();
    }
    return true;
  }
  // Waits until all have arrived at this rank's last barrier.
  //   UNAVAILABLE        a rank's process is gone; the text names it
  //   ABORTED            a rank gave up, or this one did
  //   DEADLINE_EXCEEDED  names the ranks that did not arrive, and the last call of each
  // On an error this rank has given up, and ranks that wait for it fail for the same reason.
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

// Messages from one rank to another through a small memory that both map. The sender fills slots
// and the receiver empties them.
//
// One end of the channel. One thread at a time.
class Channel {
 public:
  // `memory` is the same for both ends and initially zero. `peers` must outlive this object.
  Channel(Peers* peers, int peer, char* memory, size_t bytes);

  // Errors are those of RankBarrier::WaitForAll(), and INVALID_ARGUMENT: the message differs from
  // what the receive expects.
  Status Send(const Buffer& buffer, int tag, MonoTime deadline);
  Status Receive(const Buffer& buffer, int tag, MonoTime deadline);

 private:
  struct Word {
    std::atomic<uint32_t> count;
    std::atomic<uint32_t> sleepers;
  };
  struct Header {
    Word sent;   // slots filled
    Word taken;  // slots emptied
  };
  struct Message {
    uint64_t count;
    int32_t tag;
    DataType type;
  };

  char* Slot(uint32_t index) const { return slots_ + (index % 2) * slot_bytes_; }
  // Waits until `word` has counted to at least `least`.
  Status WaitUntil(Word& word, uint32_t least, const char* what, MonoTime deadline);
  static void Count(Word& word);

  Peers& peers_;
  const int peer_;
  Header& header_;
  char* const slots_;
  const size_t slot_bytes_;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_PEERS_H_
