#include "launcher/commands/status_watch.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/display/cluster_text.h"
#include "launcher/display/json_text.h"
#include "launcher/display/status_block.h"
#include "launcher/display/verdict_text.h"

namespace cadre::launcher {
namespace {

size_t TerminalRows() {
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 2 ? size.ws_row : 24;
}

// One screen of it, drawn over the last one without clearing it first, which would flicker.
std::string Screen(const std::string& text) {
  std::string screen = "\x1b[H";
  size_t rows = TerminalRows() - 1;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (rows-- == 0) break;
    absl::StrAppend(&screen, line, "\x1b[K\n");
  }
  return screen + "\x1b[J";
}

std::string EndText(const v1::JobStatus& job) {
  return absl::StrCat("job ", EscapeControl(job.name()), " ", OutcomeText(job.verdict()), "\n");
}

// Lines for a pipe.
class PlainLines {
 public:
  // `named`: of several jobs, each line says whose it is.
  explicit PlainLines(bool named) : named_(named) {}

  std::string Update(const v1::JobStatus& job, absl::Time now) {
    One& one = jobs_[job.name()];
    std::string text;
    for (const std::string& line : one.lines.Update(job)) Add(job, line, &text);
    if (job.has_progress() && job.progress().step() != one.step &&
        now >= one.progress_at + kWatchProgressInterval) {
      one.step = job.progress().step();
      one.progress_at = now;
      Add(job, ProgressText(job.progress()), &text);
    }
    if (job.has_verdict() && !one.ended) {
      one.ended = true;
      text += EndText(job);
    }
    return text;
  }

 private:
  struct One {
    StatusLines lines;
    uint64_t step = 0;
    absl::Time progress_at = absl::InfinitePast();
    bool ended = false;
  };
  void Add(const v1::JobStatus& job, const std::string& line, std::string* text) const {
    absl::StrAppend(text, named_ ? absl::StrCat(EscapeControl(job.name()), ": ") : "", line, "\n");
  }

  const bool named_;
  std::map<std::string, One> jobs_;
};

}  // namespace

int WatchStatus(const StatusWatch& watch) {
  const bool live = OnTerminal() && !watch.json;
  PlainLines plain(!watch.one_job);
  ClusterLines cluster;
  std::map<std::string, std::string> told;  // JSON, by job
  // Nothing has been heard: a server that is not there is told at once.
  absl::Time answered = absl::InfinitePast();
  if (live && Print("\x1b[2J") != 0) return kExitInternal;
  for (;; absl::SleepFor(kWatchInterval)) {
    const absl::StatusOr<SeenJobs> seen = watch.look();
    const absl::Time now = absl::Now();
    if (!seen.ok()) {
      const bool away =
          absl::IsUnavailable(seen.status()) || absl::IsDeadlineExceeded(seen.status());
      if (away && now < answered + kWatchPatience) continue;
      return Fail(ControlExit(seen.status()), seen.status().message());
    }
    const std::vector<v1::JobStatus>& jobs = seen->jobs;
    answered = now;
    std::string text;
    for (const v1::JobStatus& job : jobs) {
      if (watch.json) {
        std::string line = JsonText(job) + "\n";
        if (told[job.name()] != line) text += told[job.name()] = std::move(line);
      } else if (!live) {
        text += plain.Update(job, now);
      }
    }
    if (!live && !watch.json) {
      for (const std::string& line : cluster.Update(seen->nodes))
        absl::StrAppend(&text, line, "\n");
    }
    if (live) text = Screen(watch.text(*seen));
    const bool ended = watch.one_job && jobs.front().has_verdict();
    if (ended && live) absl::StrAppend(&text, EndText(jobs.front()));
    if (!text.empty() && Print(text) != 0) return kExitInternal;
    if (ended) return jobs.front().verdict().exit_status();
  }
}

}  // namespace cadre::launcher
