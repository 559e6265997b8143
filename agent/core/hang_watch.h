// Decides when a worker counts as hanging, and tracks the probe of all workers of the node that
// follows. Pure; one thread.
#ifndef CADRE_AGENT_CORE_HANG_WATCH_H_
#define CADRE_AGENT_CORE_HANG_WATCH_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/worker_state.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

// After the agent itself was suspended it gets this long to read what the workers reported
// meanwhile, before any of them counts as hanging.
inline constexpr absl::Duration kReadTime = absl::Milliseconds(100);
// Time limits of a probe after a hang: kEvidenceLimit until the evidence is sent to the server,
// kStacksLimit until the native stacks are written and the workers may be stopped.
inline constexpr absl::Duration kEvidenceLimit = absl::Milliseconds(900);
inline constexpr absl::Duration kStacksLimit = absl::Seconds(6);
// A worker is at a standstill if it has shown no progress for kUsualTimes times its usual interval,
// and for at least kMinStandstill. The workers are then probed, and again after kProbeAgain,
// and the findings are reported; nothing is stopped.
inline constexpr int kUsualTimes = 3;
inline constexpr absl::Duration kMinStandstill = absl::Seconds(5);
inline constexpr absl::Duration kProbeAgain = absl::Seconds(30);

// When the worker counts as hanging; Never() if no timeout applies to it.
MonoTime HangsAt(const Worker& worker, const v1::Timeouts& timeouts);
// The earliest HangsAt() of all workers.
MonoTime FirstHang(const Workers& workers, const v1::Timeouts& timeouts);
std::vector<uint32_t> Overdue(const Workers& workers, const v1::Timeouts& timeouts, MonoTime now);

// When the first worker is at a standstill; Never() if none reports progress.
MonoTime FirstStandstill(const Workers& workers);

// The report to the server: the findings of a probe, completed with what the agent knows of each
// worker. `findings` is empty if the probe was too slow. Workers over their timeout come first.
v1::NodeEvidence EvidenceOf(std::vector<v1::RankEvidence> findings, const Workers& workers,
                            const v1::JobSpec& spec, MonoTime now);

// The state of a probe. Its findings are due by a deadline, and a stop is delayed until it is over.
class HangWatch {
 public:
  // `briefly`: nothing is to be stopped afterwards, and a stop does not wait for the probe.
  void Begin(MonoTime now, bool briefly);
  // When to probe because of a standstill that began, or will begin, at `first`.
  // OnStandstillProbe() records that the probe was started.
  MonoTime NextProbe(MonoTime first) const {
    return first == probed_standstill_ ? std::max(first, next_probe_at_) : first;
  }
  void OnStandstillProbe(MonoTime first, MonoTime now);
  // The server asked for the findings, so they are reported even if no worker hangs.
  void Inspect() { inspected_ = true; }
  // Returns true if the findings are to be reported now.
  bool OnFindings(std::vector<v1::RankEvidence> findings, MonoTime now);
  bool FindingsAreDue(MonoTime now);
  std::vector<v1::RankEvidence> TakeFindings();
  // Whether to send the evidence to the server. `stands_still`: a worker is still at a standstill.
  bool ShouldReport(bool stands_still, v1::NodeEvidence* evidence);
  // Returns false if no probe was under way.
  bool End();

  // No hang was found yet, and no probe is under way.
  bool idle() const { return !hang_ && !probing() && findings_by_ == MonoTime::Never(); }
  bool probing() const { return over_by_ != MonoTime::Never(); }
  bool delays_stop() const { return probing() && !briefly_; }
  // The deadline of the probe; Never() if none is under way.
  MonoTime over_by() const { return over_by_; }
  MonoTime Deadline() const { return std::min(findings_by_, over_by_); }
  // The evidence of a hang, sent again when the server reconnects.
  const std::optional<v1::NodeEvidence>& hang() const { return hang_; }

 private:
  MonoTime findings_by_ = MonoTime::Never();  // Never() once the findings are in
  MonoTime over_by_ = MonoTime::Never();
  std::vector<v1::RankEvidence> findings_;
  bool inspected_ = false;
  bool briefly_ = false;
  // For probes because of a standstill: its beginning, and the earliest time of the next probe.
  bool for_standstill_ = false;
  MonoTime probed_standstill_;
  MonoTime next_probe_at_;
  std::optional<v1::NodeEvidence> hang_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_HANG_WATCH_H_
