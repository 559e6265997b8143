// Lists of hosts, in Slurm's compact form and in host files that users write.
#include "launcher/environment/host_list.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// Expands "01-03,07" to {"01", "02", "03", "07"}; leading zeros are kept.
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

// Expands one entry, which may have several brackets: "r[1-2]n[1-2]".
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

namespace {

// The host is an argument of ssh, which must not take it for an option.
bool IsDestination(absl::string_view text) {
  if (text.empty() || text[0] == '-' || std::count(text.begin(), text.end(), '@') > 1) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == '@' || c == ':';
  });
}

absl::StatusOr<HostfileHost> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  HostfileHost host;
  absl::string_view destination = words[0];
  // mpiexec's "host:2". An IPv6 address has more than one colon.
  if (const size_t colon = destination.find(':');
      colon != destination.npos && destination.rfind(':') == colon) {
    if (!absl::SimpleAtoi(destination.substr(colon + 1), &host.slots) || host.slots == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected HOST:SLOTS, got '", destination.substr(0, 64), "'"));
    }
    destination = destination.substr(0, colon);
  }
  host.destination = std::string(destination);
  const size_t at = destination.find('@');
  host.name = std::string(at == destination.npos ? destination : destination.substr(at + 1));
  if (!IsDestination(destination) || host.name.empty() || at == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected HOST or USER@HOST, got '", words[0].substr(0, 64), "'"));
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> option = absl::StrSplit(words[i], '=');
    // mpirun's limit for oversubscription has no meaning here.
    if (option.first == "max_slots" || option.first == "max-slots") continue;
    if (option.first == "slots" && host.slots > 0) {
      return absl::InvalidArgumentError("the number of slots comes twice");
    }
    if (option.first != "slots" || !absl::SimpleAtoi(option.second, &host.slots) ||
        host.slots == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected slots=N, got '", words[i].substr(0, 64), "'"));
    }
  }
  return host;
}

}  // namespace

absl::StatusOr<std::vector<HostfileHost>> ParseHostfile(absl::string_view text,
                                                        absl::string_view file) {
  std::vector<HostfileHost> hosts;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::StatusOr<HostfileHost> host = ParseLine(line);
    if (!host.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": ", host.status().message()));
    }
    const auto same = std::find_if(hosts.begin(), hosts.end(),
                                   [&](const HostfileHost& h) { return h.name == host->name; });
    if (same == hosts.end()) {
      hosts.push_back(*host);
    } else {
      same->slots = std::max<uint32_t>(1, same->slots) + std::max<uint32_t>(1, host->slots);
    }
    if (hosts.size() > kMaxHostfileHosts) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": expected at most ", kMaxHostfileHosts, " hosts"));
    }
  }
  if (!hosts.empty()) return hosts;
  return absl::InvalidArgumentError(absl::StrCat(file, ": expected a host per line, found none"));
}

}  // namespace cadre::launcher
