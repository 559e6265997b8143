#include "worker_runtime/shared_memory/peers.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/backend/exit_grace.h"
#include "worker_runtime/shared_memory/futex.h"

namespace cadre::shared_memory {
namespace {

// A few hundred microseconds if every rank has a core: longer than a sleep and a wake-up cost
// together with the work in between.
constexpr int kSpinsWithCores = 8000;
constexpr int kSpinsWithoutCores = 20;
constexpr int kYieldsWithoutCores = 200;

int CoresOfThisProcess() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

bool HasCores(size_t ranks) { return CoresOfThisProcess() >= static_cast<int>(ranks); }

// The control block does not record whether the rank called Abort() or ended.
Status LeftError(int rank) {
  return AbortedError(absl::StrCat("rank ", rank,
                                   " has left the communicator: its program ended, or it aborted "
                                   "or destroyed it"));
}

}  // namespace

Peers::Peers(int rank, std::vector<ControlBlock*> blocks, const std::vector<pid_t>& pids)
    : rank_(rank),
      blocks_(std::move(blocks)),
      pids_(pids),
      spins_(HasCores(blocks_.size()) ? kSpinsWithCores : kSpinsWithoutCores),
      yields_(HasCores(blocks_.size()) ? 0 : kYieldsWithoutCores) {
  for (const pid_t pid : pids) pidfds_.push_back(pid == getpid() ? kNoPidfd : Watch(pid));
}

int Peers::Watch(pid_t pid) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd >= 0) return fd;
  if (errno == ESRCH) return kGonePidfd;
  if (errno == EMFILE || errno == ENFILE) {
    status_.Update(ResourceExhaustedError(
        absl::StrCat("no descriptor to watch process ", pid, " by: ", ErrnoText(errno),
                     "; `ulimit -n` says how many files a process may open")));
  }
  // A container's system call filter may forbid pidfd_open().
  return kNoPidfd;
}

Peers::~Peers() {
  for (const int fd : pidfds_) {
    if (fd >= 0) close(fd);
  }
}

bool Peers::IsGone(int peer) const {
  if (pids_[peer] == pids_[rank_]) return false;
  if (pidfds_[peer] == kGonePidfd) return true;
  if (pidfds_[peer] == kNoPidfd) {
    // A zombie, whose parent has not waited for it, still counts as alive here.
    return kill(pids_[peer], 0) != 0 && errno == ESRCH;
  }
  pollfd fd = {pidfds_[peer], POLLIN, 0};
  return poll(&fd, 1, 0) > 0;
}

bool Peers::MayStillEnd(int culprit) const {
  if (culprit >= size() || pids_[culprit] == pids_[rank_] || IsGone(culprit)) return false;
  const int64_t now = MonoNow().micros();
  if (HasAnyDied()) return false;
  int64_t first = 0;
  if (saw_abort_.compare_exchange_strong(first, now)) first = now;
  return now - first < absl::ToInt64Microseconds(backend::kVisibleExitGrace);
}

bool Peers::HasAnyDied() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (blocks_[peer]->gave_up.load() == 0 && IsGone(peer)) return true;
  }
  return false;
}

Status Peers::Check(int peer, bool at_last) const {
  if (own().gave_up.load() != 0) return AbortedError("the communicator was aborted");
  if (peer == rank_) return OkStatus();
  const uint32_t gave_up = blocks_[peer]->gave_up.load();
  if (gave_up != 0) {
    const bool aborted = static_cast<Reason>(gave_up & 0xff) == Reason::kCaller;
    if (aborted && !at_last && MayStillEnd(static_cast<int>(gave_up >> 8))) return OkStatus();
    return RepeatReason(peer, gave_up);
  }
  if (!IsGone(peer)) return OkStatus();
  return UnavailableError(absl::StrCat("rank ", peer, " is gone (process ", pids_[peer], ")"));
}

Status Peers::RepeatReason(int peer, uint32_t gave_up) const {
  const int culprit = static_cast<int>(gave_up >> 8);
  switch (static_cast<Reason>(gave_up & 0xff)) {
    case Reason::kGone:
      return UnavailableError(absl::StrCat("rank ", culprit, " is gone (process ",
                                           culprit < size() ? pids_[culprit] : 0, "), as rank ",
                                           peer, " noticed"));
    case Reason::kLate:
      return DeadlineExceededError(
          absl::StrCat("rank ", culprit, " did not come in time, as rank ", peer, " noticed"));
    case Reason::kCaller:
      return LeftError(culprit);
    case Reason::kMismatch:
    case Reason::kNone:
      break;
  }
  return LeftError(peer);
}

void Peers::GiveUp(Reason reason, int culprit) {
  uint32_t none = 0;
  own().gave_up.compare_exchange_strong(
      none, static_cast<uint32_t>(reason) | (static_cast<uint32_t>(culprit) << 8));
  // Wakes this rank's own sleeper, whichever rank it waits for, and all that sleep on this rank.
  for (ControlBlock* block : blocks_) FutexWakeAll(block->futex());
}

void Peers::GiveUpFor(int peer, const Status& checked) {
  const Reason reason = checked.code() == StatusCode::kUnavailable        ? Reason::kGone
                        : checked.code() == StatusCode::kDeadlineExceeded ? Reason::kLate
                                                                          : Reason::kCaller;
  const uint32_t gave_up = blocks_[peer]->gave_up.load();
  GiveUp(reason, gave_up != 0 ? static_cast<int>(gave_up >> 8) : peer);
}

std::string Describe(const CollectiveCall& call) {
  const std::string what = absl::StrCat(" of ", call.count, " ", backend::Name(call.type));
  switch (call.kind) {
    case Collective::kNone:
      return "nothing";
    case Collective::kAllReduce:
      return absl::StrCat("an all-reduce (", backend::Name(call.op), ")", what);
    case Collective::kReduce:
      return absl::StrCat("a reduce (", backend::Name(call.op), ") to rank ", call.root, what);
    case Collective::kReduceScatter:
      return absl::StrCat("a reduce-scatter (", backend::Name(call.op), ")", what);
    case Collective::kBroadcast:
      return absl::StrCat("a broadcast from rank ", call.root, what);
    case Collective::kAllGather:
      return absl::StrCat("an all-gather", what, " from each");
    case Collective::kAllGatherVarying:
      return absl::StrCat("an all-gather", what, " in parts of fingerprint ", call.root);
    case Collective::kReduceScatterVarying:
      return absl::StrCat("a reduce-scatter (", backend::Name(call.op), ")", what,
                          " in parts of fingerprint ", call.root);
    case Collective::kBarrier:
      return "a barrier";
  }
  return "";
}

uint32_t FingerprintOf(Span<const size_t> counts) {
  uint32_t hash = 2166136261u;
  for (const size_t count : counts) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((count >> shift) & 0xff)) * 16777619u;
    }
  }
  return hash;
}

namespace {

// The number of ranks that one error names.
constexpr size_t kMissingNamed = 3;
// Where other processes compete for the cores a yield may last arbitrarily long, and a rank that
// yields does not check whether its peers are alive.
constexpr absl::Duration kYieldTime = absl::Milliseconds(10);

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
  MonoTime yield_until = MonoTime::Never();
  for (const ControlBlock* other : others_) {
    while (!HasArrived(*other)) {
      if (--spins >= 0) {
        PauseCore();
      } else if (--yields >= 0 && MonoNow() < yield_until) {
        if (yield_until == MonoTime::Never()) yield_until = MonoNow() + kYieldTime;
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
    if (HasArrived(peer)) continue;  // it arrived just before it went
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

namespace {

constexpr size_t kLine = 64;
constexpr uint32_t kSlots = 2;

bool Reached(uint32_t count, uint32_t least) { return static_cast<int32_t>(count - least) >= 0; }

}  // namespace

Channel::Channel(Peers* peers, int peer, char* memory, size_t bytes)
    : peers_(*peers),
      peer_(peer),
      header_(*reinterpret_cast<Header*>(memory)),
      slots_(memory + kLine),
      slot_bytes_((bytes - kLine) / kSlots / kLine * kLine) {}

void Channel::Count(Word& word) {
  word.count.fetch_add(1, std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_seq_cst) != 0) FutexWakeAll(&word.count);
}

Status Channel::WaitUntil(Word& word, uint32_t least, const char* what, MonoTime deadline) {
  for (int spins = peers_.spins(); spins > 0; --spins) {
    if (Reached(word.count.load(std::memory_order_acquire), least)) return OkStatus();
    PauseCore();
  }
  while (true) {
    word.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = word.count.load(std::memory_order_seq_cst);
    if (!Reached(seen, least)) FutexWait(&word.count, seen, kLivenessMillis);
    word.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (Reached(word.count.load(), least)) return OkStatus();
    const bool is_late = MonoNow() >= deadline;
    Status status = peers_.Check(peer_, is_late);
    if (!status.ok()) {
      // Everything that the peer did before it went counts.
      if (Reached(word.count.load(), least)) return OkStatus();
      peers_.GiveUpFor(peer_, status);
      return status;
    }
    if (!is_late) continue;
    peers_.GiveUp(Reason::kLate, peer_);
    return DeadlineExceededError(absl::StrCat("rank ", peer_, " ", what, " in time"));
  }
}

Status Channel::Send(const Buffer& buffer, int tag, MonoTime deadline) {
  const size_t bytes = buffer.count * SizeOf(buffer.type);
  const char* const data = static_cast<const char*>(buffer.data);
  const Message message = {buffer.count, tag, buffer.type};
  size_t done = 0;
  bool first = true;
  do {
    const uint32_t index = header_.sent.count.load();
    RETURN_IF_ERROR(
        WaitUntil(header_.taken, index - (kSlots - 1), "did not take a message", deadline));
    char* to = Slot(index);
    size_t room = slot_bytes_;
    if (first) {
      memcpy(to, &message, sizeof(message));
      to += kLine;
      room -= kLine;
      first = false;
    }
    const size_t piece = std::min(room, bytes - done);
    if (piece > 0) memcpy(to, data + done, piece);
    done += piece;
    Count(header_.sent);
  } while (done < bytes);
  return OkStatus();
}

Status Channel::Receive(const Buffer& buffer, int tag, MonoTime deadline) {
  const size_t bytes = buffer.count * SizeOf(buffer.type);
  char* const data = static_cast<char*>(buffer.data);
  size_t done = 0;
  bool first = true;
  do {
    const uint32_t index = header_.taken.count.load();
    RETURN_IF_ERROR(WaitUntil(header_.sent, index + 1, "did not send a message", deadline));
    const char* from = Slot(index);
    size_t room = slot_bytes_;
    if (first) {
      Message message;
      memcpy(&message, from, sizeof(message));
      if (message.count != buffer.count || message.type != buffer.type || message.tag != tag) {
        return InvalidArgumentError(absl::StrCat(
            "rank ", peers_.rank(), " waits for ", buffer.count, " ", backend::Name(buffer.type),
            " with tag ", tag, ", but rank ", peer_, " sent ", message.count, " ",
            backend::Name(message.type), " with tag ", message.tag));
      }
      from += kLine;
      room -= kLine;
      first = false;
    }
    const size_t piece = std::min(room, bytes - done);
    if (piece > 0) memcpy(data + done, from, piece);
    done += piece;
    Count(header_.taken);
  } while (done < bytes);
  return OkStatus();
}

}  // namespace cadre::shared_memory
