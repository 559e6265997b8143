// A rank's control block: the few words of shared memory in which it says what it does next and how
// far it is. Written by its own rank only, but for the count of sleepers.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_CONTROL_BLOCK_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_CONTROL_BLOCK_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "cadre/communicator.h"
#include "cadre/span.h"

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
  // Where there is none: 0, or a fingerprint of the counts of all ranks.
  uint32_t root = 0;
  uint64_t count = 0;

  friend bool operator==(const CollectiveCall& a, const CollectiveCall& b) {
    return a.kind == b.kind && a.type == b.type && a.op == b.op && a.root == b.root &&
           a.count == b.count;
  }
};

// "an all-reduce (sum) of 4 float32".
std::string Describe(const CollectiveCall& call);

// FNV-1a over what all ranks must know alike.
uint32_t FingerprintOf(Span<const size_t> counts);

struct ControlBlock {
  // The lower half counts the barriers this rank has arrived at, and is the word that others sleep
  // on; the upper half counts the operations it has begun. Alone in its cache line, which its rank
  // writes to and never reads: the line is with the core that looked last, and fetching it back
  // takes as long as publishing the new value.
  alignas(64) std::atomic<uint64_t> progress;
  // How many sleep on `progress`. With what is as seldom written.
  alignas(64) std::atomic<uint32_t> sleepers;
  // Set once, when this rank gave up: a Reason and, in the bits above it, the rank it blames.
  std::atomic<uint32_t> gave_up;
  // Of the current operation: valid from its first barrier until its last. A training loop
  // repeats the same call, so every core keeps its copy.
  alignas(64) uint32_t version;  // changes with what follows
  uint32_t allocation;           // registered buffer, or kNotRegistered
  uint64_t offset;               // into it
  double factor;                 // that this rank's elements are multiplied with
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

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_CONTROL_BLOCK_H_
