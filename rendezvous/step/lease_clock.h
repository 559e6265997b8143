// LeaseClock: the clocks on which the core counts leases and deadlines. Pure; one thread.
//
// Three time scales are in use, all of type MonoTime:
//   host time    What the host passes to Core::Step(). Records store it.
//   lease_now()  Host time without the pauses of the host (suspended, or not scheduled). Renewals
//                that arrived in a pause are still unread, so no lease may run out because of it.
//                Leases are counted on this scale.
//   now()        lease_now() without the time in which the host could not save. Orders are held
//                back then, so no deadline may run out because of it; but renewals are received,
//                so leases go on. All deadlines but leases are counted on this scale.
//
// FromRecord() converts a stored host time to now(). It subtracts all pauses up to the present, as
// now() does, so they cancel out: pauses do not extend a deadline that is counted from a record.
#ifndef CADRE_RENDEZVOUS_STEP_LEASE_CLOCK_H_
#define CADRE_RENDEZVOUS_STEP_LEASE_CLOCK_H_

#include <cstdint>

#include "absl/time/time.h"
#include "base/time.h"

namespace cadre::step {

class LeaseClock {
 public:
  // `slack` is how late a step may be before the host counts as late, and how long a late host may
  // take to read what arrived meanwhile.
  LeaseClock(absl::Duration lease, absl::Duration slack) : lease_(lease), slack_(slack) {}

  // While leases exist the host must call Core::Step() at least this often; a gap of more than
  // twice this counts as a pause.
  absl::Duration max_step_interval() const { return lease_ / 6; }

  // Called at the start of each step. `host`: the host time. `due`: when the step was due at the
  // latest; `has_leases`: whether leases existed, which bounds the gap between steps. Returns the
  // length of the pause before this step, usually zero.
  absl::Duration Advance(MonoTime host, MonoTime due, bool has_leases);
  // Returns false if nothing has changed.
  bool SetCanSave(bool can);
  bool can_save() const { return can_save_; }

  MonoTime now() const { return (can_save_ ? lease_now() : save_failed_at_) + -unsaved_; }
  MonoTime FromHost(MonoTime host) const { return host + -paused_ + -unsaved_; }
  MonoTime FromRecord(int64_t us) const { return FromHost(MonoTime::FromMicros(us)); }

  MonoTime lease_now() const { return host_ + -paused_; }
  MonoTime LeaseFromRecord(int64_t us) const { return MonoTime::FromMicros(us) + -paused_; }

  // The now() time since which nodes can reach the server and receive its decisions: when it began,
  // or when it could last save again.
  MonoTime reachable_since() const { return reachable_since_; }
  // Called when the server begins with a state.
  void BeginServing() { reachable_since_ = now(); }

  // Returns when a lease that ends at `end` expires; both are lease_now() times. If the host was
  // late, the node's renewals may be unread, so the node gets `slack` more. An absent node (without
  // a stream) gets it also if `end` is shortly after the host was late, since its reconnection may
  // be queued behind messages of older streams; and it does not expire while the host cannot save,
  // since no node is admitted then. Apart from that a lease is never put off by more than its own
  // length, even if the host is always late.
  MonoTime ExpiresAt(MonoTime end, bool absent) const;

  // Converts to host time. ToHost() returns Never while the host cannot save, since now() stands
  // still.
  MonoTime ToHost(MonoTime moment) const {
    return can_save_ ? moment + unsaved_ + paused_ : MonoTime::Never();
  }
  MonoTime LeaseToHost(MonoTime moment) const { return moment + paused_; }

 private:
  const absl::Duration lease_;
  const absl::Duration slack_;
  MonoTime host_;
  // The lease_now() time since which the host cannot save, and the time it could not save before
  // that.
  MonoTime save_failed_at_;
  absl::Duration unsaved_;
  bool can_save_ = true;
  absl::Duration paused_;
  // The lease_now() time when the host was last late.
  MonoTime late_at_;
  MonoTime reachable_since_;
};

}  // namespace cadre::step

#endif  // CADRE_RENDEZVOUS_STEP_LEASE_CLOCK_H_
