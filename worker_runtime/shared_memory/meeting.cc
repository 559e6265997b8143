#include "worker_runtime/shared_memory/meeting.h"

#include <sched.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "worker_runtime/shared_memory/futex.h"

namespace cadre {
namespace {

// Names in one error.
constexpr size_t kMissingNamed = 3;
// Where others want the cores too, every yield takes as long as they please, and who yields does
// not look whether its peers still live.
constexpr absl::Duration kYieldPatience = absl::Milliseconds(10);

std::string LastCall(const RankLine& line) {
  if (line.word.kind == Collective::kNone) return "it has not started any collective";
  return absl::StrCat("its last was collective ", line.operations(), ", ", Describe(line.word));
}

}  // namespace

void Meeting::Arrive() {
  own().progress.store((uint64_t{operations_} << 32) | ++meetings_, std::memory_order_release);
}

bool Meeting::SpinForAll() const {
  const bool all = Spin();
  // Only now: the store of Arrive() has left this core while it spun, so the fence costs little.
  // With the sleeper's own it makes sure that either the sleeper sees the store, or this the
  // sleeper.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (own().sleepers.load(std::memory_order_relaxed) != 0) FutexWakeAll(own().futex());
  return all;
}

bool Meeting::Spin() const {
  int spins = peers_.spins(), yields = peers_.yields();
  MonoTime patience = MonoTime::Never();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    while (!HasCome(peer)) {
      if (--spins >= 0) {
        PauseCore();
      } else if (--yields >= 0 && MonoNow() < patience) {
        if (patience == MonoTime::Never()) patience = MonoNow() + kYieldPatience;
        sched_yield();
      } else {
        return false;
      }
    }
  }
  return true;
}

absl::Status Meeting::WaitForAll(MonoTime deadline) {
  if (SpinForAll()) return absl::OkStatus();
  for (int peer = 0; peer < size(); ++peer) {
    while (!HasCome(peer)) {
      absl::Status going_on = SleepOn(peer);
      if (!going_on.ok()) return going_on;
      if (HasCome(peer)) break;
      if (MonoNow() < deadline) continue;
      const std::string missing = Missing();
      peers_.GiveUp(Reason::kLate, FirstMissing());
      return absl::DeadlineExceededError(missing);
    }
  }
  return absl::OkStatus();
}

absl::Status Meeting::SleepOn(int peer) {
  RankLine& line = peers_.line(peer);
  line.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = static_cast<uint32_t>(line.progress.load(std::memory_order_seq_cst));
  if (static_cast<int32_t>(seen - meetings_) < 0 && own().gave_up.load() == 0) {
    FutexWait(line.futex(), seen, kLivenessMillis);
  }
  line.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return HasCome(peer) ? absl::OkStatus() : CheckMissing();
}

absl::Status Meeting::CheckMissing() {
  for (int peer = 0; peer < size(); ++peer) {
    // Who has come may be gone by now: it has done its part.
    if (HasCome(peer)) continue;
    absl::Status status = peers_.Check(peer);
    if (status.ok()) continue;
    if (HasCome(peer)) continue;  // just before it went
    const Reason reason = absl::IsUnavailable(status)        ? Reason::kGone
                          : absl::IsDeadlineExceeded(status) ? Reason::kLate
                                                             : Reason::kCaller;
    // Whom the other one blames, if it does; else itself.
    const uint32_t blamed = line(peer).gave_up.load() >> 8;
    peers_.GiveUp(reason, line(peer).gave_up.load() != 0 ? static_cast<int>(blamed) : peer);
    return status;
  }
  return absl::OkStatus();
}

int Meeting::FirstMissing() const {
  int peer = 0;
  while (peer + 1 < size() && HasCome(peer)) ++peer;
  return peer;
}

std::string Meeting::Missing() const {
  std::vector<std::string> named;
  size_t count = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (HasCome(peer)) continue;
    if (++count <= kMissingNamed) {
      named.push_back(absl::StrCat("rank ", peer, " (", LastCall(line(peer)), ")"));
    }
  }
  std::string text = absl::StrCat("did not come in time to collective ", own().operations(), ", ",
                                  Describe(own().word), ": ", absl::StrJoin(named, ", "));
  if (count > kMissingNamed) absl::StrAppend(&text, " and ", count - kMissingNamed, " more");
  return text;
}

}  // namespace cadre
