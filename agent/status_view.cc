#include "agent/status_view.h"

namespace cadre::agent {

void StatusView::Set(v1::JobStatus status, MonoTime now) {
  status_ = std::move(status);
  Redraw(now);
}

void StatusView::Redraw(MonoTime now) {
  display_.Status(status_, progress_());
  drawn_at_ = now;
}

void StatusView::RedrawIfDue(MonoTime now) {
  if (now - drawn_at_ >= kProgressRedraw) Redraw(now);
}

}  // namespace cadre::agent
