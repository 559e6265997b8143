#include "launcher/display/timeline_text.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "launcher/display/output_format.h"

namespace cadre::launcher {
namespace {

// The number of progress samples that are shown.
constexpr int kShownSamples = 10;

std::string DurationText(int64_t us) { return us == 0 ? "-" : TookText(0, us); }

// 0 means that no worker reports the figure.
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

// How many workers were kept from the generation before, and how many were forked from a process
// that had imported their packages.
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

namespace {

// Pixels.
constexpr double kLeft = 110;
constexpr double kWidth = 860;
constexpr double kRow = 22;
constexpr double kBar = 16;
constexpr double kTop = 56;
constexpr double kChart = 90;
constexpr double kGap = 34;
constexpr int kTicks = 6;

struct Phase {
  const char* name;
  const char* color;
};
constexpr Phase kGather = {"gather", "#c9c9c9"};
constexpr Phase kStart = {"start", "#f2c14e"};
constexpr Phase kRun = {"run", "#4f9d69"};
constexpr Phase kStop = {"stop", "#d1495b"};

std::string Xml(const std::string& text) {
  std::string safe;
  for (const char c : EscapeControl(text)) {
    if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (c == '&') {
      safe += "&amp;";
    } else if (c == '"') {
      safe += "&quot;";
    } else {
      safe += c;
    }
  }
  return safe;
}

class Drawing {
 public:
  explicit Drawing(const v1::Timeline& timeline) : timeline_(timeline) {
    for (const auto& g : timeline.generations()) end_us_ = std::max(end_us_, EndOf(timeline, g));
    for (const auto& s : timeline.progress()) end_us_ = std::max(end_us_, s.at_us());
  }

  std::string Draw() {
    y_ = kTop;
    for (const v1::GenerationTimeline& g : timeline_.generations()) Generation(g);
    Axis();
    if (timeline_.progress_size() > 0) {
      Chart("samples/s", "#4f9d69",
            [](const v1::ProgressSample& s) { return s.samples_per_second(); });
      Chart("loss", "#30638e", [](const v1::ProgressSample& s) { return s.loss(); });
    }
    const double width = kLeft + kWidth + 30, height = y_ + 12;
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
        "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"11\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"12\" y=\"20\" font-size=\"14\">%s</text>\n%s%s</svg>\n",
        width, height, width, height, Xml(absl::StrCat("job ", timeline_.job())), Legend(), body_);
  }

 private:
  double X(int64_t us) const {
    return kLeft + kWidth * static_cast<double>(us) / static_cast<double>(end_us_);
  }

  static std::string Legend() {
    std::string text;
    double x = kLeft;
    for (const Phase& phase : {kGather, kStart, kRun, kStop}) {
      absl::StrAppendFormat(&text,
                            "<rect x=\"%.0f\" y=\"30\" width=\"10\" height=\"10\" fill=\"%s\"/>"
                            "<text x=\"%.0f\" y=\"39\">%s</text>\n",
                            x, phase.color, x + 14, phase.name);
      x += 70;
    }
    return text;
  }

  void Bar(const Phase& phase, int64_t from_us, int64_t to_us, const std::string& note) {
    if (to_us <= from_us) return;
    // Very short phases are made visible too.
    const double width = std::max(X(to_us) - X(from_us), 0.75);
    absl::StrAppendFormat(&body_,
                          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" "
                          "fill=\"%s\"><title>%s</title></rect>\n",
                          X(from_us), y_, width, kBar, phase.color,
                          Xml(absl::StrCat(phase.name, " ", TookText(from_us, to_us), note)));
  }

  void Generation(const v1::GenerationTimeline& g) {
    absl::StrAppendFormat(&body_, "<text x=\"12\" y=\"%.1f\">generation %d</text>\n", y_ + 12,
                          g.generation());
    const int64_t end = EndOf(timeline_, g);
    const int64_t stop = g.stopping_us() > 0 ? g.stopping_us() : end;
    const int64_t run = g.running_us() > 0 ? g.running_us() : stop;
    const std::string why = g.end_reason().empty() ? "" : absl::StrCat(": ", g.end_reason());
    Bar(kGather, g.gathering_us(), g.formed_us(), "");
    Bar(kStart, g.formed_us(), run, "");
    Bar(kRun, run, stop, absl::StrCat(", nodes: ", g.nodes(), ", workers: ", g.world_size()));
    Bar(kStop, stop, end, why);
    if (g.failed_us() > 0) {
      absl::StrAppendFormat(&body_,
                            "<path d=\"M%.2f %.1f l5 -7 h-10 z\" fill=\"#8a1c2b\">"
                            "<title>%s</title></path>\n",
                            X(g.failed_us()), y_ + 1, Xml(absl::StrCat("failed", why)));
    }
    y_ += kRow;
  }

  void Axis() {
    absl::StrAppendFormat(&body_, "<path d=\"M%.1f %.1f h%.1f\" stroke=\"#555\" fill=\"none\"/>\n",
                          kLeft, y_ + 2, kWidth);
    for (int i = 0; i <= kTicks; ++i) {
      const int64_t at = end_us_ * i / kTicks;
      absl::StrAppendFormat(
          &body_, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#555\">%s</text>\n",
          X(at), y_ + 15, i == 0 ? "0" : TookText(0, at));
    }
    y_ += kGap;
  }

  // One line per generation; values that are not numbers leave a gap.
  template <typename Value>
  void Chart(const char* name, const char* color, Value value) {
    double top = 0;
    for (const auto& sample : timeline_.progress()) {
      if (std::isfinite(value(sample))) top = std::max(top, value(sample));
    }
    if (top <= 0) return;
    absl::StrAppendFormat(
        &body_,
        "<text x=\"12\" y=\"%.1f\">%s</text>"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#555\">%.4g</text>"
        "<path d=\"M%.1f %.1f h%.1f\" stroke=\"#ddd\"/>\n",
        y_ + 12, name, kLeft - 6, y_ + 12, top, kLeft, y_ + kChart, kWidth);
    std::string path;
    uint64_t generation = 0;
    bool drawing = false;
    for (const auto& sample : timeline_.progress()) {
      const bool known = std::isfinite(value(sample)) && value(sample) >= 0;
      const bool goes_on = drawing && sample.generation() == generation;
      if (known) {
        absl::StrAppendFormat(&path, "%s%.2f %.2f", goes_on ? "L" : "M", X(sample.at_us()),
                              y_ + kChart * (1 - value(sample) / top));
      }
      drawing = known;
      generation = sample.generation();
    }
    absl::StrAppendFormat(
        &body_,
        "<path d=\"%s\" stroke=\"%s\" stroke-width=\"1.5\" stroke-linecap=\"round\" "
        "fill=\"none\"/>\n",
        path, color);
    y_ += kChart + kGap / 2;
  }

  const v1::Timeline& timeline_;
  int64_t end_us_ = 1;
  double y_ = 0;
  std::string body_;
};

}  // namespace

std::string TimelineSvg(const v1::Timeline& timeline) { return Drawing(timeline).Draw(); }

namespace {

bool IsKnown(const v1::NodeStatus& node) {
  return node.warm() != 0 || !node.why_plain().empty() || node.has_imports();
}

std::string StartedText(const v1::NodeStatus& node) {
  const std::string warm = node.warm() == 0 ? "" : absl::StrCat(node.warm(), " warm");
  if (node.why_plain().empty()) return warm.empty() ? "-" : warm;
  return absl::StrCat(warm, warm.empty() ? "" : ", others ",
                      "plainly: ", EscapeControl(node.why_plain()));
}

std::string TemplateText(const v1::ProgramImports& imports) {
  if (imports.template_modules() == 0) return "-";
  return absl::StrCat(imports.template_modules(), " modules in ",
                      ImportsText(imports.template_us()));
}

}  // namespace

std::string ImportsText(int64_t imports_us) {
  if (imports_us == 0) return "-";
  return absl::FormatDuration(absl::Milliseconds(imports_us / 1000));
}

std::string WarmStartsTable(const v1::JobStatus& job) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::NodeStatus& node : job.nodes()) {
    if (!IsKnown(node)) continue;
    rows.push_back({node.name(), StartedText(node), ImportsText(node.imports().worker_us()),
                    TemplateText(node.imports())});
  }
  return rows.empty() ? "" : FormatTable({"NODE", "STARTED", "IMPORTS", "TEMPLATE"}, rows);
}

std::string PlainStartsText(const v1::Timeline& timeline) {
  std::string text;
  for (const v1::GenerationTimeline& g : timeline.generations()) {
    if (g.why_plain().empty()) continue;
    absl::StrAppend(&text, "generation ", g.generation(), ": ",
                    g.warm() == 0 ? "" : "some workers ",
                    "started plainly, not warm: ", EscapeControl(g.why_plain()), "\n");
  }
  // They are the same in most generations, so each is listed once.
  std::set<std::string> left;
  for (const v1::GenerationTimeline& g : timeline.generations()) {
    left.insert(g.left_to_workers().begin(), g.left_to_workers().end());
  }
  for (const std::string& package : left) {
    absl::StrAppend(&text, "imported by each worker itself: ", EscapeControl(package), "\n");
  }
  return text;
}

}  // namespace cadre::launcher
