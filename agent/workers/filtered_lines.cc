#include "agent/workers/filtered_lines.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace cadre::agent {

bool FilteredLines::Open(const std::string& path) {
  file_.close();
  file_.clear();
  file_.open(path, std::ios::app);
  return file_.good();
}

void FilteredLines::Add(absl::string_view lines, size_t prefix_bytes) {
  if (!wanted() || !file_.is_open()) return;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    const absl::string_view line = lines.substr(0, end);
    lines.remove_prefix(end);
    const absl::string_view text = line.substr(std::min(prefix_bytes, line.size()));
    const bool matches = std::any_of(texts_.begin(), texts_.end(), [&](const std::string& wanted) {
      return absl::StrContains(text, wanted);
    });
    if (matches) file_.write(line.data(), static_cast<std::streamsize>(line.size()));
  }
  file_.flush();
}

}  // namespace cadre::agent
