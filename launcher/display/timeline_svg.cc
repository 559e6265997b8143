#include "launcher/display/timeline_svg.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "launcher/display/timeline_text.h"

namespace cadre::launcher {
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
    // Also what took no time to speak of is to be seen.
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

  // One line for each generation; what is no number leaves a gap.
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

}  // namespace cadre::launcher
