#include "base/host_ranges.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre {
namespace {

// Longer numbers do not fit into 64 bits, and stay a part of the name.
constexpr size_t kMaxDigits = 18;

std::string Padded(uint64_t number, size_t width) {
  const std::string digits = absl::StrCat(number);
  return std::string(width - std::min(width, digits.size()), '0') + digits;
}

// A host name and the number at its end.
struct NumberedHost {
  absl::string_view prefix;
  absl::string_view digits;  // empty: the name does not end in a number
  uint64_t number = 0;
};

NumberedHost Split(absl::string_view host) {
  size_t begin = host.size();
  while (begin > 0 && absl::ascii_isdigit(host[begin - 1])) --begin;
  NumberedHost split = {host.substr(0, begin), host.substr(begin)};
  if (split.digits.size() > kMaxDigits || !absl::SimpleAtoi(split.digits, &split.number)) {
    return {host, ""};
  }
  return split;
}

// Numbers that follow each other: 1-3, or 5 alone.
struct Range {
  absl::string_view first;
  absl::string_view last;
};

std::string BracketOf(absl::string_view prefix, const std::vector<Range>& ranges) {
  if (ranges.size() == 1 && ranges[0].first.data() == ranges[0].last.data()) {
    return absl::StrCat(prefix, ranges[0].first);
  }
  std::string text = absl::StrCat(prefix, "[");
  for (const Range& range : ranges) {
    absl::StrAppend(&text, text.back() == '[' ? "" : ",", range.first);
    if (range.first.data() != range.last.data()) absl::StrAppend(&text, "-", range.last);
  }
  return text + "]";
}

}  // namespace

std::string CompressHosts(const std::vector<std::string>& hosts) {
  std::string list;
  size_t next = 0;
  while (next < hosts.size()) {
    NumberedHost before = Split(hosts[next++]);
    std::vector<Range> ranges = {{before.digits, before.digits}};
    while (!before.digits.empty() && next < hosts.size()) {
      const NumberedHost host = Split(hosts[next]);
      if (host.digits.empty() || host.prefix != before.prefix) break;
      if (host.digits == Padded(before.number + 1, before.digits.size())) {
        ranges.back().last = host.digits;
      } else {
        ranges.push_back({host.digits, host.digits});
      }
      before = host;
      ++next;
    }
    absl::StrAppend(&list, list.empty() ? "" : ",", BracketOf(before.prefix, ranges));
  }
  return list;
}

namespace {

absl::Status Malformed(absl::string_view list) {
  return absl::InvalidArgumentError(
      absl::StrCat("host list '", OneLine(list, 128), "': expected a form such as n[01-03,07],g1"));
}

absl::Status TooMany(absl::string_view list) {
  return absl::InvalidArgumentError(absl::StrCat(
      "host list '", OneLine(list, 128), "': expected at most ", kMaxExpandedHosts, " names"));
}

template <typename Number>
bool ParseDigits(absl::string_view text, Number* number) {
  return !text.empty() && text.size() <= kMaxDigits &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, number);
}

// Expands "01-03,07" to {"01", "02", "03", "07"}.
absl::StatusOr<std::vector<std::string>> ExpandRanges(absl::string_view ranges) {
  std::vector<std::string> numbers;
  absl::string_view left = ranges;
  while (true) {
    const absl::string_view range = left.substr(0, left.find(','));
    const size_t dash = range.find('-');
    const absl::string_view low = range.substr(0, dash);
    const absl::string_view high = dash == range.npos ? low : range.substr(dash + 1);
    uint64_t from = 0;
    uint64_t to = 0;
    if (!ParseDigits(low, &from) || !ParseDigits(high, &to) || from > to) return Malformed(ranges);
    if (to - from >= kMaxExpandedHosts - numbers.size()) return TooMany(ranges);
    for (uint64_t n = from; n <= to; ++n) numbers.push_back(Padded(n, low.size()));
    if (range.size() == left.size()) return numbers;
    left.remove_prefix(range.size() + 1);
  }
}

// Expands one entry, which may have several brackets: "r[1-2]n[1-2]".
absl::StatusOr<std::vector<std::string>> ExpandEntry(absl::string_view entry) {
  std::vector<std::string> names = {""};
  absl::string_view left = entry;
  while (!left.empty()) {
    const size_t open = left.find('[');
    const absl::string_view text = left.substr(0, open);
    if (names[0].size() + text.size() > kMaxHostNameBytes) return Malformed(entry);
    for (std::string& name : names) absl::StrAppend(&name, text);
    if (open == left.npos) break;
    const size_t close = left.find(']', open);
    if (close == left.npos) return Malformed(entry);
    ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                     ExpandRanges(left.substr(open + 1, close - open - 1)));
    if (names.size() * numbers.size() > kMaxExpandedHosts) return TooMany(entry);
    if (names[0].size() + numbers[0].size() > kMaxHostNameBytes) return Malformed(entry);
    std::vector<std::string> longer;
    longer.reserve(names.size() * numbers.size());
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
    left.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHosts(absl::string_view list) {
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
    if (names.size() > kMaxExpandedHosts) return TooMany(list);
    begin = i + 1;
  }
  return names;
}

std::string CompressCounts(const std::vector<uint32_t>& counts) {
  std::string text;
  for (auto it = counts.begin(); it != counts.end();) {
    const auto end = std::find_if(it, counts.end(), [&](uint32_t count) { return count != *it; });
    absl::StrAppend(&text, text.empty() ? "" : ",", *it);
    if (end - it > 1) absl::StrAppend(&text, "(x", end - it, ")");
    it = end;
  }
  return text;
}

absl::StatusOr<std::vector<uint32_t>> ExpandCounts(absl::string_view text) {
  std::vector<uint32_t> counts;
  absl::string_view left = text;
  while (true) {
    const absl::string_view entry = left.substr(0, left.find(','));
    const size_t open = entry.find("(x");
    uint32_t count = 0;
    uint32_t times = 1;
    bool good = ParseDigits(entry.substr(0, open), &count);
    if (good && open != entry.npos) {
      absl::string_view repeat = entry.substr(open + 2);
      good = !repeat.empty() && repeat.back() == ')';
      if (good) repeat.remove_suffix(1);
      good = good && ParseDigits(repeat, &times);
    }
    if (!good || times > kMaxExpandedHosts - counts.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tasks per node '", OneLine(text, 128),
                                                     "': expected a form such as 2(x3),1"));
    }
    counts.insert(counts.end(), times, count);
    if (entry.size() == left.size()) return counts;
    left.remove_prefix(entry.size() + 1);
  }
}

}  // namespace cadre
