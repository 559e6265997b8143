#include "worker_runtime/shared_memory/rank_barrier.h"

#include <sched.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace cadre::shared_memory {
namespace {

// Names in one error.
constexpr size_t kMissingNamed = 3;
// Where others want the cores too, a yield may last arbitrarily long, and a rank that yields does
// not look whether its peers still live.
constexpr absl::Duration kYieldPatience = absl::Milliseconds(10);

std::string LastCall(const ControlBlock& block) {
  if (block.call.kind == Collective::kNone) return "it has not started any collective";
  return absl::StrCat("its last was collective ", block.operations(), ", ", Describe(block.call));
}

}  // namespace

RankBarrier::RankBarrier(Peers* peers) : peers_(*peers), own_(peers->own()) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) others_.push_back(&block(peer));
  }
}

bool RankBarrier::SpinLonger() {
  int spins = peers_.spins(), yields = peers_.yields();
  MonoTime patience = MonoTime::Never();
  for (const ControlBlock* other : others_) {
    while (!HasArrived(*other)) {
      if (--spins >= 0) {
        PauseCore();
      } else if (--yields >= 0 && MonoNow() < patience) {
        if (patience == MonoTime::Never()) patience = MonoNow() + kYieldPatience;
        sched_yield();
      } else {
        WakeLateSleepers();
        return false;
      }
    }
  }
  return true;
}

Status RankBarrier::WaitForAll(MonoTime deadline) {
  if (SpinForAll()) return OkStatus();
  for (int peer = 0; peer < size(); ++peer) {
    while (!HasArrived(peer)) {
      Status going_on = SleepOn(peer);
      if (!going_on.ok()) return going_on;
      if (HasArrived(peer)) break;
      if (MonoNow() < deadline) continue;
      RETURN_IF_ERROR(CheckMissing(/*at_last=*/true));
      const std::string missing = Missing();
      peers_.GiveUp(Reason::kLate, FirstMissing());
      return DeadlineExceededError(missing);
    }
  }
  return OkStatus();
}

Status RankBarrier::SleepOn(int peer) {
  ControlBlock& block = peers_.block(peer);
  block.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = static_cast<uint32_t>(block.progress.load(std::memory_order_seq_cst));
  if (static_cast<int32_t>(seen - arrivals_) < 0 && own().gave_up.load() == 0) {
    FutexWait(block.futex(), seen, kLivenessMillis);
  }
  block.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return HasArrived(peer) ? OkStatus() : CheckMissing();
}

Status RankBarrier::CheckMissing(bool at_last) {
  for (int peer = 0; peer < size(); ++peer) {
    // A rank that has arrived may be gone by now: it has done its part.
    if (HasArrived(peer)) continue;
    Status status = peers_.Check(peer, at_last);
    if (status.ok()) continue;
    if (HasArrived(peer)) continue;  // just before it went
    peers_.GiveUpFor(peer, status);
    return status;
  }
  return OkStatus();
}

int RankBarrier::FirstMissing() const {
  int peer = 0;
  while (peer + 1 < size() && HasArrived(peer)) ++peer;
  return peer;
}

std::string RankBarrier::Missing() const {
  std::vector<std::string> named;
  size_t count = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (HasArrived(peer)) continue;
    if (++count <= kMissingNamed) {
      named.push_back(absl::StrCat("rank ", peer, " (", LastCall(block(peer)), ")"));
    }
  }
  std::string text = absl::StrCat("did not come in time to collective ", own().operations(), ", ",
                                  Describe(own().call), ": ", absl::StrJoin(named, ", "));
  if (count > kMissingNamed) absl::StrAppend(&text, " and ", count - kMissingNamed, " more");
  return text;
}

}  // namespace cadre::shared_memory
