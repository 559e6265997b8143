// When a worker counts as hanging, and the look at all workers of the node that follows. Pure; one
// thread.
#ifndef CADRE_AGENT_CORE_HANG_WATCH_H_
#define CADRE_AGENT_CORE_HANG_WATCH_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/worker.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

// Before a worker counts as hanging the agent must have had time to read what the worker reported
// while the agent itself stood still.
inline constexpr absl::Duration kReadTime = absl::Milliseconds(100);
// How long a look at workers that hang may take: for what is sent to the server, and with native
// stacks before they are stopped.
inline constexpr absl::Duration kEvidenceLimit = absl::Milliseconds(900);
inline constexpr absl::Duration kStacksLimit = absl::Seconds(6);
// A worker stands still that has shown no progress for so many times as long as is usual for it,
// and for so long at least. Where the workers are then is looked at, again after a while, and told;
// nothing is stopped.
inline constexpr int kUsualTimes = 3;
inline constexpr absl::Duration kStandsStillAtLeast = absl::Seconds(5);
inline constexpr absl::Duration kLookAgain = absl::Seconds(30);

// When the worker counts as hanging; Never() for one that no timeout applies to.
MonoTime HangsAt(const Worker& worker, const v1::Timeouts& timeouts);
// The first moment at which one of them does.
MonoTime FirstHang(const Workers& workers, const v1::Timeouts& timeouts);
std::vector<uint32_t> Overdue(const Workers& workers, const v1::Timeouts& timeouts, MonoTime now);

// When one of them stands still; Never() where none tells how far it is.
MonoTime FirstStandstill(const Workers& workers);

// What the server hears of a look: what was found, bare where nothing was found in time, and what
// is known of each worker here. Those over their timeout come first.
v1::NodeEvidence EvidenceOf(std::vector<v1::RankEvidence> findings, const Workers& workers,
                            const v1::JobSpec& spec, MonoTime now);

// A look: until its findings are in it waits for them, and until it is over a stop waits for it.
class HangWatch {
 public:
  // `briefly`: nothing is to be stopped, and a stop does not wait for it.
  void Begin(MonoTime now, bool briefly);
  // When to look because of a standstill that began, or begins, at `first`; and that it is done.
  MonoTime LooksAt(MonoTime first) const {
    return first == looked_at_ ? std::max(first, looks_again_) : first;
  }
  void Looks(MonoTime first, MonoTime now);
  // The server asked for what is found, also where nothing hangs.
  void Inspect() { inspected_ = true; }
  // True: the findings are to be reported now.
  bool Found(std::vector<v1::RankEvidence> findings, MonoTime now);
  bool FindingsAreDue(MonoTime now);
  std::vector<v1::RankEvidence> TakeFindings();
  // Whether the server is to hear of this. `stands_still`: a worker does, also now.
  bool IsNews(bool stands_still, v1::NodeEvidence* evidence);
  // False: none was under way.
  bool End();

  // Nothing was found yet, and no look is under way.
  bool idle() const { return !hang_ && !looking() && findings_by_ == MonoTime::Never(); }
  bool looking() const { return over_by_ != MonoTime::Never(); }
  bool holds_stop() const { return looking() && !briefly_; }
  // When the look ends at the latest; Never() without one.
  MonoTime over_by() const { return over_by_; }
  MonoTime Deadline() const { return std::min(findings_by_, over_by_); }
  // What was found of a hang; sent again to a server that comes back.
  const std::optional<v1::NodeEvidence>& hang() const { return hang_; }

 private:
  MonoTime findings_by_ = MonoTime::Never();  // Never() once they are in
  MonoTime over_by_ = MonoTime::Never();
  std::vector<v1::RankEvidence> findings_;
  bool inspected_ = false;
  bool briefly_ = false;
  // Because of a standstill: which, and not again before.
  bool for_standstill_ = false;
  MonoTime looked_at_;
  MonoTime looks_again_;
  std::optional<v1::NodeEvidence> hang_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_HANG_WATCH_H_
