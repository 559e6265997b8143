// The output for the user: the interface Display, which the launcher implements with a status block
// that is redrawn or with plain lines, and StatusView, which decides when it is redrawn. Called on
// the loop thread.
#ifndef CADRE_AGENT_DISPLAY_H_
#define CADRE_AGENT_DISPLAY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/agent_core.h"
#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

class Display {
 public:
  virtual ~Display() = default;
  // Takes complete lines of a worker, each with its prefix and newline. A very long line may come
  // in pieces: then the text has no newline yet, and the next call continues it. `to_stderr`: the
  // stream they came from.
  virtual void WorkerLines(const std::string& lines, bool to_stderr) = 0;
  // Whether rows that a worker overwrites, such as progress bars, are passed to CurrentRows() and
  // drawn with the next Status(). If not, they are passed on as the worker writes them.
  virtual bool DrawsCurrentRows(bool /*to_stderr*/) const { return false; }
  // The rows that the worker is overwriting now; empty when it no longer does.
  virtual void CurrentRows(uint32_t /*local_rank*/, std::vector<std::string> /*rows*/) {}
  // Whether the display accepts more of the workers' lines: its reader keeps up, or has blocked for
  // so long that lines are dropped.
  virtual bool TakesLines() { return true; }
  virtual void Line(const std::string& line) = 0;  // a line of the launcher's own
  virtual void Status(const v1::JobStatus& status, const std::vector<v1::Progress>& progress) = 0;
  virtual void Finish(const Exit& exit) = 0;
};

// The least time between two redraws for progress alone.
inline constexpr absl::Duration kProgressRedraw = absl::Milliseconds(100);
// The least time between two redraws if no progress came, but only time passed or the terminal was
// resized.
inline constexpr absl::Duration kAgeRedraw = absl::Seconds(1);

// Draws the job's status and its workers' progress: status as it changes, progress at a limited
// rate.
class StatusView {
 public:
  // `progress` returns the newest progress of each worker.
  StatusView(Display& display, std::function<std::vector<v1::Progress>()> progress)
      : display_(display), progress_(std::move(progress)) {}

  void Set(v1::JobStatus status, MonoTime now);
  // Called when there is new progress.
  void Redraw(MonoTime now);
  void RedrawIfDue(MonoTime now);
  // Called regularly, even if nothing has happened.
  void RedrawIfOld(MonoTime now);

 private:
  Display& display_;
  const std::function<std::vector<v1::Progress>()> progress_;
  v1::JobStatus status_;
  MonoTime set_at_;
  MonoTime drawn_at_;
  bool is_set_ = false;
  bool is_behind_ = false;  // new progress came too soon after the last redraw
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_DISPLAY_H_
