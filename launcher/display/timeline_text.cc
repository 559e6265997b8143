#include "launcher/display/timeline_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "launcher/display/table.h"
#include "launcher/display/warm_text.h"

namespace cadre::launcher {
namespace {

// Progress samples that are shown.
constexpr int kShownSamples = 10;

std::string DurationText(int64_t us) { return us == 0 ? "-" : TookText(0, us); }

// 0 is what nobody reports.
std::string FigureText(const absl::FormatSpec<double>& format, double figure) {
  return figure == 0 ? "-" : absl::StrFormat(format, figure);
}

std::string ProgressTable(const v1::Timeline& timeline) {
  std::vector<std::vector<std::string>> rows;
  const int count = timeline.progress_size();
  const int shown = std::min(count, kShownSamples);
  for (int i = 0; i < shown; ++i) {
    // Evenly spread, the first and the last among them.
    const v1::ProgressSample& sample =
        timeline.progress(shown < 2 ? 0 : static_cast<int>(int64_t{i} * (count - 1) / (shown - 1)));
    rows.push_back({TookText(0, sample.at_us()), absl::StrCat(sample.generation()),
                    absl::StrCat(sample.step()), FigureText("%.0f", sample.samples_per_second()),
                    FigureText("%.4f", sample.loss())});
  }
  return FormatTable({"AT", "GENERATION", "STEP", "SAMPLES/S", "LOSS"}, rows);
}

// How many of them came from the generation before, in their processes, and how many were forked
// from one that had imported what they import.
std::string WorkersText(const v1::GenerationTimeline& g) {
  std::string text = absl::StrCat(g.world_size());
  if (g.rejoined() != 0) absl::StrAppend(&text, ", ", g.rejoined(), " in place");
  if (g.warm() != 0) absl::StrAppend(&text, ", ", g.warm(), " warm");
  return text;
}

}  // namespace

std::string TookText(int64_t from_us, int64_t to_us) {
  if (to_us == 0 || to_us < from_us) return "-";
  return absl::FormatDuration(absl::Milliseconds((to_us - from_us + 500) / 1000));
}

int64_t EndOf(const v1::Timeline& timeline, const v1::GenerationTimeline& g) {
  int64_t end = std::max({g.stopped_us(), g.stopping_us(), g.failed_us(), g.first_progress_us(),
                          g.running_us(), g.formed_us()});
  if (g.stopped_us() != 0) return end;
  for (const v1::ProgressSample& sample : timeline.progress()) {
    if (sample.generation() == g.generation()) end = std::max(end, sample.at_us());
  }
  return end;
}

std::string RecoveriesText(const v1::Timeline& timeline) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::Recovery& r : timeline.recoveries()) {
    rows.push_back({absl::StrCat(r.from_generation(), " to ", r.to_generation()),
                    DurationText(r.stop_us()), DurationText(r.gather_us()),
                    DurationText(r.start_us()), DurationText(r.total_us()),
                    DurationText(r.first_progress_us()), r.reason()});
  }
  return FormatTable({"RECOVERY", "STOP", "GATHER", "START", "TOTAL", "FIRST PROGRESS", "BECAUSE"},
                     rows);
}

std::string TimelineText(const v1::Timeline& timeline) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::GenerationTimeline& g : timeline.generations()) {
    rows.push_back(
        {absl::StrCat(g.generation()), absl::StrCat(g.nodes()), WorkersText(g),
         TookText(g.gathering_us(), g.formed_us()), TookText(g.formed_us(), g.running_us()),
         ImportsText(g.imports_us()),
         g.running_us() == 0
             ? "-"
             : TookText(g.running_us(), g.failed_us() > 0 ? g.failed_us() : EndOf(timeline, g)),
         g.stopping_us() == 0 ? "-" : TookText(g.stopping_us(), g.stopped_us()),
         g.late().empty() ? g.end_reason() : absl::StrCat(g.end_reason(), "; ", g.late())});
  }
  std::string text = FormatTable(
      {"GENERATION", "NODES", "WORKERS", "GATHER", "START", "IMPORTS", "RUN", "STOP", "ENDED BY"},
      rows);
  absl::StrAppend(&text, PlainStartsText(timeline));
  if (timeline.recoveries_size() > 0) absl::StrAppend(&text, "\n", RecoveriesText(timeline));
  if (timeline.progress_size() > 0) absl::StrAppend(&text, "\n", ProgressTable(timeline));
  return text;
}

}  // namespace cadre::launcher
