// The job's status and its workers' progress as people see them: status as it changes, progress at
// most so often. One thread.
#ifndef CADRE_AGENT_STATUS_VIEW_H_
#define CADRE_AGENT_STATUS_VIEW_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agent/display.h"
#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// Between two redraws that only a line of progress asks for.
inline constexpr absl::Duration kProgressRedraw = absl::Milliseconds(100);
// Between two that only the time asks for: no step comes, or the terminal has another size.
inline constexpr absl::Duration kAgeRedraw = absl::Seconds(1);

class StatusView {
 public:
  // `progress` gives the newest of each worker.
  StatusView(Display& display, std::function<std::vector<v1::Progress>()> progress)
      : display_(display), progress_(std::move(progress)) {}

  void Set(v1::JobStatus status, MonoTime now);
  // There is other progress.
  void Redraw(MonoTime now);
  void RedrawIfDue(MonoTime now);
  // Nothing has happened. Called again and again.
  void Age(MonoTime now);

 private:
  Display& display_;
  const std::function<std::vector<v1::Progress>()> progress_;
  v1::JobStatus status_;
  MonoTime set_at_;
  MonoTime drawn_at_;
  bool is_set_ = false;
  bool is_behind_ = false;  // there was progress when it was too soon for a redraw
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_STATUS_VIEW_H_
