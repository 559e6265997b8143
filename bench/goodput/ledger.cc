#include "bench/goodput/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace cadre::bench {
namespace {

absl::StatusOr<int> OpenToAppend(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  return fd;
}

// One write, so that lines of several processes do not mix.
void Append(int fd, const std::string& line) {
  if (write(fd, line.data(), line.size()) < 0) return;
}

int64_t NowNs() { return MonoNow().micros() * 1000; }

MonoTime FromNs(int64_t ns) { return MonoTime::FromMicros(ns / 1000); }

}  // namespace

absl::StatusOr<Ledger> Ledger::Open(const std::string& dir) {
  Ledger ledger;
  absl::StatusOr<int> fd = OpenToAppend(dir + "/steps");
  if (!fd.ok()) return fd.status();
  ledger.steps_ = *fd;
  fd = OpenToAppend(dir + "/events");
  if (!fd.ok()) return fd.status();
  ledger.events_ = *fd;
  return ledger;
}

Ledger::Ledger(Ledger&& other) noexcept
    : steps_(std::exchange(other.steps_, -1)), events_(std::exchange(other.events_, -1)) {}

Ledger::~Ledger() {
  if (steps_ >= 0) close(steps_);
  if (events_ >= 0) close(events_);
}

void Ledger::Step(int64_t step) { Append(steps_, absl::StrCat(step, " ", NowNs(), "\n")); }

void Ledger::Event(int rank, absl::string_view event) {
  Append(events_, absl::StrCat(getpid(), " ", rank, " ", event, " ", NowNs(), "\n"));
}

std::vector<FinishedStep> ReadSteps(const std::string& dir) {
  std::vector<FinishedStep> steps;
  std::ifstream file(dir + "/steps");
  int64_t step = 0, ns = 0;
  while (file >> step >> ns && file.peek() == '\n') steps.push_back({step, FromNs(ns)});
  return steps;
}

std::vector<WorkerEvent> ReadEvents(const std::string& dir) {
  std::vector<WorkerEvent> events;
  std::ifstream file(dir + "/events");
  WorkerEvent event;
  int64_t ns = 0;
  while (file >> event.pid >> event.rank >> event.event >> ns && file.peek() == '\n') {
    event.at = FromNs(ns);
    events.push_back(event);
  }
  return events;
}

Recovery RecoveryFrom(MonoTime kill, MonoTime until, const std::vector<FinishedStep>& steps,
                      const std::vector<WorkerEvent>& events) {
  Recovery recovery;
  recovery.to_first_step = absl::InfiniteDuration();
  // Steps that were under way may still end after the kill: what is looked for is the longest
  // pause.
  absl::Duration longest;
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].at <= kill || steps[i].at > until) continue;
    const absl::Duration pause = steps[i].at - std::max(steps[i - 1].at, kill);
    if (pause <= longest) continue;
    longest = pause;
    recovery.to_first_step = steps[i].at - kill;
    recovery.redone = std::max<int64_t>(steps[i - 1].step + 1 - steps[i].step, 0);
  }
  for (const WorkerEvent& event : events) {
    if (event.at <= kill || event.at > until) continue;
    const auto later = [&](absl::Duration& slowest) {
      slowest = std::max(slowest, event.at - kill);
    };
    if (event.event == "main") later(recovery.to_main);
    if (event.event == "connected") later(recovery.to_connected);
    if (event.event == "resumed") later(recovery.to_resumed);
  }
  return recovery;
}

int64_t FurthestStep(const std::vector<FinishedStep>& steps, MonoTime at) {
  int64_t furthest = 0;
  for (const FinishedStep& step : steps) {
    if (step.at <= at) furthest = std::max(furthest, step.step);
  }
  return furthest;
}

}  // namespace cadre::bench
