#include "launcher/display/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::launcher {

std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> all = {header};
  for (const auto& row : rows) {
    std::vector<std::string>& safe = all.emplace_back();
    for (const std::string& cell : row) safe.push_back(EscapeControl(cell));
  }
  std::vector<size_t> widths(header.size());
  for (const auto& row : all) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : all) {
    std::string line;
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace cadre::launcher
