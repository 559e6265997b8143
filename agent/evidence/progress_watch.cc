#include "agent/evidence/progress_watch.h"

#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/progress_snapshot.h"
#include "rpc/job_progress.h"

namespace cadre::agent {
namespace {

// Returns a negative number if there is no such file.
int64_t ModifiedNs(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return -1;
  return int64_t{found.st_mtim.tv_sec} * 1000000000 + found.st_mtim.tv_nsec;
}

int64_t Bytes(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 ? int64_t{found.st_size} : 0;
}

// Converts a file's time stamp to MonoTime; the wall clock may be set back and forth.
MonoTime MomentOf(int64_t modified_ns, MonoTime now) {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t age_ns = int64_t{wall.tv_sec} * 1000000000 + wall.tv_nsec - modified_ns;
  const absl::Duration age =
      std::min(std::max(absl::Nanoseconds(age_ns), absl::ZeroDuration()), absl::Seconds(1));
  return now + -age;
}

}  // namespace

struct ProgressWatch::OutputSizes {
  std::map<uint32_t, std::vector<std::string>> files;  // by local rank
  std::map<uint32_t, int64_t> bytes;
  std::atomic<bool> done{false};
};

void ProgressWatch::Start(std::string directory, uint64_t generation, std::vector<Worker> workers) {
  directory_ = std::move(directory);
  generation_ = generation;
  workers_.clear();
  for (Worker& worker : workers) {
    const auto [added, is_new] = workers_.try_emplace(worker.local_rank);
    CADRE_CHECK(is_new, "two workers of local rank ", worker.local_rank);
    added->second.worker = std::move(worker);
  }
  // A reading under way is for workers that are no longer tracked.
  output_sizes_ = nullptr;
}

std::vector<AgentEvent> ProgressWatch::OnLine(uint32_t local_rank, absl::string_view line,
                                              MonoTime now) {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) return {};
  const std::optional<ProgressLine> parsed = ParseProgressLine(line);
  if (!parsed) return {WorkerAlive{generation_, local_rank, now}};
  Watched& watched = found->second;
  v1::Progress progress = parsed->progress;
  progress.set_local_rank(local_rank);
  if (parsed->has_step) lines_have_steps_ = true;
  // Values that this line leaves out are taken from the last report.
  if (watched.progress) {
    const v1::Progress& before = *watched.progress;
    if (!parsed->has_step) progress.set_step(before.step());
    if (progress.total() == 0) progress.set_total(before.total());
    if (progress.figures().empty()) *progress.mutable_figures() = before.figures();
  }
  watched.progress = progress;
  std::vector<AgentEvent> events = {WorkerProgress{generation_, std::move(progress), now}};
  if (!parsed->has_step) events.push_back(WorkerAlive{generation_, local_rank, now});
  return events;
}

void ProgressWatch::PollPage(Watched& watched, MonoTime now, std::vector<AgentEvent>& events) {
  const absl::StatusOr<ProgressSnapshot> page = ReadProgressPage(
      ProgressPagePath(directory_, generation_, static_cast<int>(watched.worker.rank)));
  if (!page.ok() || (page->since == watched.page_since && page->step == watched.page_step)) return;
  watched.page_since = page->since;
  // A page may contain any value.
  const MonoTime since = std::min(page->since, now);
  const bool other_step = page->step != watched.page_step;
  watched.page_step = page->step;
  // A step's usual time is not known before the first step has ended.
  if (page->phase == WorkerPhase::kStarting) return;
  events.push_back(WorkerAlive{generation_, watched.worker.local_rank, since});
  if (!other_step || lines_have_steps_ || page->step <= 0) return;
  if (!watched.progress) watched.progress.emplace();
  watched.progress->set_local_rank(watched.worker.local_rank);
  watched.progress->set_step(static_cast<uint64_t>(page->step));
  watched.progress->set_of_generation(true);
  events.push_back(WorkerProgress{generation_, *watched.progress, since});
}

void ProgressWatch::PollFile(Watched& watched, MonoTime now, std::vector<AgentEvent>& events) {
  const uint32_t local_rank = watched.worker.local_rank;
  const int64_t touched = ModifiedNs(watched.worker.progress_file);
  if (touched >= 0 && touched != watched.touched_ns) {
    watched.touched_ns = touched;
    events.push_back(WorkerAlive{generation_, local_rank, MomentOf(touched, now)});
  }
}

void ProgressWatch::ReadOutputSizes(MonoTime now) {
  auto sizes = std::make_shared<OutputSizes>();
  for (const auto& [local_rank, watched] : workers_) {
    if (!watched.worker.output_files.empty())
      sizes->files[local_rank] = watched.worker.output_files;
  }
  if (sizes->files.empty()) return;
  output_sizes_ = sizes;
  sizes_asked_at_ = now;
  files_.Post([sizes = std::move(sizes)] {
    for (const auto& [local_rank, paths] : sizes->files) {
      for (const std::string& path : paths) sizes->bytes[local_rank] += Bytes(path);
    }
    sizes->done = true;
  });
}

void ProgressWatch::PollOutput(MonoTime now, std::vector<AgentEvent>& events) {
  if (output_sizes_ == nullptr) return ReadOutputSizes(now);
  if (!output_sizes_->done) {
    if (now < sizes_asked_at_ + kFileTaskHungAfter) return;
    for (const auto& [local_rank, paths] : output_sizes_->files) {
      events.push_back(WorkerWrote{generation_, local_rank, now});
    }
    return;
  }
  for (const auto& [local_rank, bytes] : output_sizes_->bytes) {
    // Log files are appended to, so their content at the first reading may be from an earlier run.
    const int64_t before = std::exchange(workers_.at(local_rank).output_bytes, bytes);
    if (before >= 0 && bytes != before) {
      events.push_back(WorkerWrote{generation_, local_rank, now});
    }
  }
  ReadOutputSizes(now);
}

std::vector<AgentEvent> ProgressWatch::Poll(MonoTime now) {
  std::vector<AgentEvent> events;
  for (auto& [local_rank, watched] : workers_) {
    PollPage(watched, now, events);
    PollFile(watched, now, events);
  }
  PollOutput(now, events);
  return events;
}

std::vector<v1::Progress> ProgressWatch::Newest() const {
  std::vector<v1::Progress> newest;
  for (const auto& [local_rank, watched] : workers_) {
    if (watched.progress) newest.push_back(*watched.progress);
  }
  return newest;
}

std::optional<ProgressLine> ParseProgressLine(absl::string_view line) {
  ProgressLine parsed;
  v1::Progress& progress = parsed.progress;
  bool any = false;
  for (const absl::string_view word :
       absl::StrSplit(line, absl::ByAnyChar(" \t\r\n,"), absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    uint64_t step = 0;
    double number = 0;
    if (parts.first == "step" && absl::SimpleAtoi(parts.second, &step)) {
      progress.set_step(step);
      parsed.has_step = true;
      any = true;
    } else if (parts.first == "samples_per_second" && absl::SimpleAtod(parts.second, &number) &&
               std::isfinite(number)) {
      progress.set_samples_per_second(number);
      any = true;
    } else if (parts.first == "loss" && absl::SimpleAtod(parts.second, &number)) {
      // A NaN loss is what the user most wants to see.
      progress.set_loss(number);
      any = true;
    } else if (parts.first == "total" && absl::SimpleAtoi(parts.second, &step)) {
      progress.set_total(step);
      any = true;
    } else if (absl::SimpleAtod(parts.second, &number) &&
               rpc::SetFigure(parts.first, number, progress.mutable_figures())) {
      any = true;
    }
  }
  if (!any) return std::nullopt;
  return parsed;
}

}  // namespace cadre::agent
