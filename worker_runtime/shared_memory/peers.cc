#include "worker_runtime/shared_memory/peers.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/text.h"
#include "worker_runtime/backend/exit_grace.h"
#include "worker_runtime/shared_memory/futex.h"

namespace cadre::shared_memory {
namespace {

// Some hundred microseconds where everyone has a core: longer than what a sleep and a wake-up cost
// together with the work in between.
constexpr int kSpinsWithCores = 8000;
constexpr int kSpinsWithoutCores = 20;
constexpr int kYieldsWithoutCores = 200;

int CoresOfThisProcess() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

bool HasCores(size_t ranks) { return CoresOfThisProcess() >= static_cast<int>(ranks); }

// Whether it called Abort() or ended is not told.
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
  // A container's filter of system calls may refuse it.
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
    // One that nobody has waited for yet is still there by this.
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
      return DeadlineExceededError(absl::StrCat(
          "rank ", culprit, " did not come in time to what rank ", peer, " waited for"));
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
  // This rank's own sleeper, whomever it waits for, and everybody who sleeps on this rank.
  for (ControlBlock* block : blocks_) FutexWakeAll(block->futex());
}

void Peers::GiveUpFor(int peer, const Status& checked) {
  const Reason reason = checked.code() == StatusCode::kUnavailable        ? Reason::kGone
                        : checked.code() == StatusCode::kDeadlineExceeded ? Reason::kLate
                                                                          : Reason::kCaller;
  const uint32_t gave_up = blocks_[peer]->gave_up.load();
  GiveUp(reason, gave_up != 0 ? static_cast<int>(gave_up >> 8) : peer);
}

}  // namespace cadre::shared_memory
