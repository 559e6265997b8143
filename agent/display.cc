#include "agent/display.h"

namespace cadre::agent {

void StatusView::Set(v1::JobStatus status, MonoTime now) {
  status_ = std::move(status);
  set_at_ = now;
  is_set_ = true;
  Redraw(now);
}

void StatusView::Redraw(MonoTime now) {
  drawn_at_ = now;
  is_behind_ = false;
  if (!status_.has_progress()) return display_.Status(status_, progress_());
  v1::JobStatus aged = status_;
  v1::JobProgress& progress = *aged.mutable_progress();
  progress.set_quiet_us(progress.quiet_us() + absl::ToInt64Microseconds(now - set_at_));
  display_.Status(aged, progress_());
}

void StatusView::RedrawIfOld(MonoTime now) {
  if (!is_set_) return;
  if (now - drawn_at_ >= (is_behind_ ? kProgressRedraw : kAgeRedraw)) Redraw(now);
}

void StatusView::RedrawIfDue(MonoTime now) {
  is_behind_ = now - drawn_at_ < kProgressRedraw;
  if (!is_behind_) Redraw(now);
}

}  // namespace cadre::agent
