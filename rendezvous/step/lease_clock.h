// The clock on which leases and deadlines are counted. Pure; one thread.
//
// It goes with the host's clock, and stands still while the host stood still: nodes may have spoken
// meanwhile, and what they said lies unread. By this lease_now() goes. now(), by which everything
// else goes, stands still also while the host cannot save: nodes cannot be late with what they were
// not told, but they are heard, so that their leases go on.
//
// Moments in the core are moments of now(), but those of leases. Records hold the host's, for
// people; FromRecord says where those are on this clock, so that a deadline that is counted from a
// record is not put off by what the clock stood still.
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

  MonoTime now() const { return (can_save_ ? lease_now() : stopped_at_) + -unsaved_; }
  MonoTime FromHost(MonoTime host) const { return host + -stood_still_ + -unsaved_; }
  MonoTime FromRecord(int64_t us) const { return FromHost(MonoTime::FromMicros(us)); }

  MonoTime lease_now() const { return host_ + -stood_still_; }
  MonoTime LeaseFromRecord(int64_t us) const { return MonoTime::FromMicros(us) + -stood_still_; }

  // Since when the server could say what it decides, and so was heard by nodes: since it began, or
  // since it could save again.
  MonoTime spoke_since() const { return spoke_since_; }
  // The server began with a state.
  void BeginAnew() { spoke_since_ = now(); }

  // When a lease is over that ends at `end`, both of lease_now(). What its node said may lie unread
  // where the host was late to look: the node has `slack` more then. Where it is absent, who comes
  // back in its place may be in the queue behind what was said on older streams, also a moment
  // later, and nobody is let in while the host cannot save. A host that is always late puts nothing
  // off for longer than a lease.
  MonoTime OverAt(MonoTime end, bool absent) const;

  // On the host's clock; Never: not before it can save.
  MonoTime ToHost(MonoTime moment) const {
    return can_save_ ? moment + unsaved_ + stood_still_ : MonoTime::Never();
  }
  MonoTime LeaseToHost(MonoTime moment) const { return moment + stood_still_; }

 private:
  const absl::Duration lease_;
  const absl::Duration slack_;
  MonoTime host_;
  // The host cannot save since then, by lease_now(), and could not for so long before.
  MonoTime stopped_at_;
  absl::Duration unsaved_;
  bool can_save_ = true;
  absl::Duration stood_still_;
  // When the host was late last, by lease_now().
  MonoTime late_at_;
  MonoTime spoke_since_;
};

}  // namespace cadre::step

#endif  // CADRE_RENDEZVOUS_STEP_LEASE_CLOCK_H_
