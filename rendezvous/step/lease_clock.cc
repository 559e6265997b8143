#include "rendezvous/step/lease_clock.h"

#include "base/check.h"

namespace cadre::step {

absl::Duration LeaseClock::Advance(MonoTime host, MonoTime due, bool has_leases) {
  // The core never passes a time before that of its last step.
  CADRE_CHECK(host >= host_, "the host's time went back by ", absl::FormatDuration(host_ - host));
  const absl::Duration gap = host - host_;
  host_ = host;
  const bool stood_still = has_leases && gap > 2 * max_step_interval();
  if (stood_still) paused_ += gap;
  if (gap > 2 * slack_ || (due != MonoTime::Never() && host - due > slack_)) late_at_ = lease_now();
  return stood_still ? gap : absl::ZeroDuration();
}

bool LeaseClock::SetCanSave(bool can) {
  if (can == can_save_) return false;
  can_save_ = can;
  if (!can) {
    save_failed_at_ = lease_now();
    return true;
  }
  unsaved_ += lease_now() - save_failed_at_;
  reachable_since_ = now();
  return true;
}

MonoTime LeaseClock::ExpiresAt(MonoTime end, bool absent) const {
  if (absent && !can_save_) return lease_now() + lease_;
  if (lease_now() - end >= lease_) return end;
  if (end <= late_at_) return late_at_ + slack_;
  return absent && end < late_at_ + slack_ ? end + slack_ : end;
}

}  // namespace cadre::step
