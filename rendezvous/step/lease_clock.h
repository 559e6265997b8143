// The clock on which leases and deadlines are counted. Pure; one thread.
//
// It goes with the host's clock, and stands still
//   - while the host stood still: nodes may have spoken meanwhile, and what they said lies unread;
//   - while the host cannot save: nobody hears what the core decides.
//
// Moments in the core are moments of this clock. Records hold the host's, for people; FromRecord
// says where those are on this clock, so that a deadline that is counted from a record is not put
// off by what the clock stood still.
#ifndef CADRE_RENDEZVOUS_STEP_LEASE_CLOCK_H_
#define CADRE_RENDEZVOUS_STEP_LEASE_CLOCK_H_

#include <cstdint>

#include "absl/time/time.h"
#include "base/time.h"

namespace cadre::step {

class LeaseClock {
 public:
  // `slack`: how late a host may be without having stood still, and how long it may take to read
  // what came in meanwhile.
  LeaseClock(absl::Duration lease, absl::Duration slack) : lease_(lease), slack_(slack) {}

  // While there are leases the host steps the core at least this often; where it does not for twice
  // as long it stood still.
  absl::Duration look_interval() const { return lease_ / 6; }

  // The host steps the core. `due`: when it was to do so at the latest; `has_leases`: they were one
  // of the reasons. Returns for how long the host stood still, mostly zero.
  absl::Duration Advance(MonoTime host, MonoTime due, bool has_leases);
  // False: nothing has changed.
  bool SetCanSave(bool can);
  bool can_save() const { return can_save_; }

  MonoTime now() const { return FromHost(can_save_ ? host_ : stopped_at_); }
  MonoTime FromHost(MonoTime host) const { return host + -stood_still_; }
  MonoTime FromRecord(int64_t us) const { return FromHost(MonoTime::FromMicros(us)); }

  // Since when the server could say what it decides, and so was heard by nodes: since it began, or
  // since it could save again.
  MonoTime spoke_since() const { return spoke_since_; }
  // The server began with a state.
  void BeginAnew() { spoke_since_ = now(); }

  // When a lease is over that ends at `end`. What its node said may lie unread where the host was
  // late to look: the node has `slack` more then. Where it is absent, who comes back in its place
  // may be in the queue behind what was said on older streams, also a moment later. A host that is
  // always late puts nothing off for longer than a lease.
  MonoTime OverAt(MonoTime end, bool absent) const;

  // On the host's clock; Never: not before it can save.
  MonoTime ToHost(MonoTime moment) const {
    return can_save_ ? moment + stood_still_ : MonoTime::Never();
  }

 private:
  const absl::Duration lease_;
  const absl::Duration slack_;
  MonoTime host_;
  // The host cannot save since then, by its own clock.
  MonoTime stopped_at_;
  bool can_save_ = true;
  absl::Duration stood_still_;
  // When the host was late last.
  MonoTime late_at_;
  MonoTime spoke_since_;
};

}  // namespace cadre::step

#endif  // CADRE_RENDEZVOUS_STEP_LEASE_CLOCK_H_
