#include "agent/workers/filtered_lines.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace cadre::agent {

bool FilteredLines::Open(const std::string& path) {
  file_ = std::make_shared<File>();
  file_->path = path;
  return thread_
      .ResultWithin(kStandsStillAfter,
                    [file = file_] {
                      file->stream.open(file->path, std::ios::app);
                      return file->stream.good();
                    })
      .value_or(true);
}

void FilteredLines::Add(absl::string_view lines, size_t prefix_bytes) {
  if (!wanted() || file_ == nullptr) return;
  std::string chosen;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    const absl::string_view line = lines.substr(0, end);
    lines.remove_prefix(end);
    const absl::string_view text = line.substr(std::min(prefix_bytes, line.size()));
    const bool matches = std::any_of(texts_.begin(), texts_.end(), [&](const std::string& wanted) {
      return absl::StrContains(text, wanted);
    });
    if (matches) absl::StrAppend(&chosen, line);
  }
  if (chosen.empty()) return;
  if (thread_.StandsStill(MonoNow())) {
    left_out_ += chosen.size();
    return;
  }
  if (const size_t bytes = std::exchange(left_out_, 0); bytes > 0) {
    chosen = absl::StrCat("[", bytes, " bytes are missing here]\n", chosen);
  }
  thread_.RunWithin(kStandsStillAfter, [file = file_, chosen] {
    // Open() does not wait for a file system of which it is known that it does not answer.
    if (!file->stream.is_open()) file->stream.open(file->path, std::ios::app);
    file->stream << chosen << std::flush;
  });
}

}  // namespace cadre::agent
