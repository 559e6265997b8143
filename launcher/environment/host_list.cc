#include "launcher/environment/host_list.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::launcher {
namespace {

absl::Status Malformed(absl::string_view list) {
  return absl::InvalidArgumentError(
      absl::StrCat("host list '", OneLine(list, 128), "': expected a form such as n[01-03,07],g1"));
}

bool Digits(absl::string_view text) {
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// "01-03,07" to {"01", "02", "03", "07"}; zeros in front are kept.
absl::StatusOr<std::vector<std::string>> ExpandRanges(absl::string_view ranges) {
  std::vector<std::string> numbers;
  while (true) {
    const absl::string_view range = ranges.substr(0, ranges.find(','));
    const size_t dash = range.find('-');
    const absl::string_view low = range.substr(0, dash);
    const absl::string_view high = dash == range.npos ? low : range.substr(dash + 1);
    uint32_t from = 0;
    uint32_t to = 0;
    if (!Digits(low) || !Digits(high) || !absl::SimpleAtoi(low, &from) ||
        !absl::SimpleAtoi(high, &to) || from > to || to - from >= kMaxHosts ||
        numbers.size() >= kMaxHosts) {
      return Malformed(ranges);
    }
    for (uint32_t n = from; n <= to; ++n) {
      const std::string number = absl::StrCat(n);
      const size_t zeros = low.size() > number.size() ? low.size() - number.size() : 0;
      numbers.push_back(std::string(zeros, '0') + number);
    }
    if (range.size() == ranges.size()) return numbers;
    ranges.remove_prefix(range.size() + 1);
  }
}

// One entry without a comma outside brackets; there may be several brackets: "r[1-2]n[1-2]".
absl::StatusOr<std::vector<std::string>> ExpandEntry(absl::string_view entry) {
  std::vector<std::string> names = {""};
  while (!entry.empty()) {
    const size_t open = entry.find('[');
    for (std::string& name : names) absl::StrAppend(&name, entry.substr(0, open));
    if (open == entry.npos) break;
    const size_t close = entry.find(']', open);
    if (close == entry.npos) return Malformed(entry);
    ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                     ExpandRanges(entry.substr(open + 1, close - open - 1)));
    if (names.size() * numbers.size() > kMaxHosts) return Malformed(entry);
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
    entry.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view list) {
  std::vector<std::string> names;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) return Malformed(list);
    if (c != ',' || (depth > 0 && i < list.size())) continue;
    if (depth > 0 || i == begin) return Malformed(list);
    ASSIGN_OR_RETURN(const std::vector<std::string> more,
                     ExpandEntry(list.substr(begin, i - begin)));
    names.insert(names.end(), more.begin(), more.end());
    if (names.size() > kMaxHosts) return Malformed(list);
    begin = i + 1;
  }
  return names;
}

absl::StatusOr<std::vector<uint32_t>> ExpandTasksPerNode(absl::string_view text) {
  std::vector<uint32_t> counts;
  absl::string_view left = text;
  while (true) {
    const absl::string_view entry = left.substr(0, left.find(','));
    const size_t open = entry.find("(x");
    uint32_t count = 0;
    uint32_t times = 1;
    const absl::string_view number = entry.substr(0, open);
    bool good = Digits(number) && absl::SimpleAtoi(number, &count);
    if (good && open != entry.npos) {
      absl::string_view repeat = entry.substr(open + 2);
      good = !repeat.empty() && repeat.back() == ')';
      if (good) repeat.remove_suffix(1);
      good = good && Digits(repeat) && absl::SimpleAtoi(repeat, &times);
    }
    if (!good || counts.size() + times > kMaxHosts) {
      return absl::InvalidArgumentError(absl::StrCat("tasks per node '", OneLine(text, 128),
                                                     "': expected a form such as 2(x3),1"));
    }
    counts.insert(counts.end(), times, count);
    if (entry.size() == left.size()) return counts;
    left.remove_prefix(entry.size() + 1);
  }
}

}  // namespace cadre::launcher
