#include "launcher/slurm/option_values.h"

#include <signal.h>
#include <string.h>

#include <cstddef>
#include <limits>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

constexpr uint32_t kMaxCount = 1 << 30;
constexpr uint64_t kMaxMebibytes = uint64_t{1} << 40;
// Of --signal, as Slurm has them.
constexpr uint64_t kDefaultWarningSeconds = 60;
constexpr uint64_t kMaxWarningSeconds = 65535;

absl::Status Expected(absl::string_view what, absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", Quoted(got)));
}

bool Digits(absl::string_view text, uint64_t* value) {
  for (const char c : text) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return absl::SimpleAtoi(text, value);
}

}  // namespace

absl::StatusOr<uint32_t> ParseSlurmCount(absl::string_view text, uint32_t least) {
  absl::string_view digits = text;
  uint64_t factor = 1, value = 0;
  if (absl::ConsumeSuffix(&digits, "k") || absl::ConsumeSuffix(&digits, "K")) factor = 1024;
  if (absl::ConsumeSuffix(&digits, "m") || absl::ConsumeSuffix(&digits, "M")) factor = 1 << 20;
  if (!Digits(digits, &value) || value > kMaxCount / factor || value * factor < least) {
    return Expected(absl::StrCat("a number from ", least), text);
  }
  return static_cast<uint32_t>(value * factor);
}

absl::StatusOr<std::pair<uint32_t, uint32_t>> ParseSlurmNodes(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> range =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  const absl::StatusOr<uint32_t> least = ParseSlurmCount(range.first, 1);
  const absl::StatusOr<uint32_t> most =
      absl::StrContains(text, '-') ? ParseSlurmCount(range.second, 1) : least;
  if (!least.ok() || !most.ok() || *most < *least) {
    return Expected("a number of nodes, as 2 or 2-4", text);
  }
  return std::make_pair(*least, *most);
}

absl::StatusOr<absl::Duration> ParseSlurmTime(absl::string_view text) {
  for (const char* const word : {"UNLIMITED", "INFINITE", "-1"}) {
    if (absl::EqualsIgnoreCase(text, word)) return absl::InfiniteDuration();
  }
  const absl::Status error =
      Expected("a time, as 30 (minutes), 30:00, 1:30:00, 2-12 (days-hours) or 2-12:30:00", text);
  absl::string_view rest = text;
  uint64_t days = 0;
  const size_t dash = text.find('-');
  if (dash != text.npos) {
    if (!Digits(text.substr(0, dash), &days) || days > 36500) return error;
    rest = text.substr(dash + 1);
  }
  std::vector<uint64_t> parts;
  for (const absl::string_view part : absl::StrSplit(rest, ':')) {
    uint64_t value = 0;
    if (!Digits(part, &value) || value > 100'000'000) return error;
    parts.push_back(value);
  }
  if (parts.size() > 3) return error;
  // The first number is of hours after days and in front of two others; otherwise of minutes.
  const bool hours_first = dash != text.npos || parts.size() == 3;
  if (!hours_first) parts.insert(parts.begin(), 0);
  parts.resize(3, 0);
  const absl::Duration time =
      absl::Hours(24 * days + parts[0]) + absl::Minutes(parts[1]) + absl::Seconds(parts[2]);
  return time == absl::ZeroDuration() ? absl::InfiniteDuration() : time;
}

absl::StatusOr<uint64_t> ParseSlurmMemory(absl::string_view text) {
  std::string upper = absl::AsciiStrToUpper(text);
  absl::string_view digits = upper;
  if (digits.size() > 2) absl::ConsumeSuffix(&digits, "B");
  int shift = 20;
  for (const auto& [suffix, bits] :
       {std::pair<const char*, int>{"K", 10}, {"M", 20}, {"G", 30}, {"T", 40}, {"P", 50}}) {
    if (!absl::ConsumeSuffix(&digits, suffix)) continue;
    shift = bits;
    break;
  }
  uint64_t value = 0;
  if (!Digits(digits, &value) || value > (kMaxMebibytes << 20) >> shift) {
    return Expected("an amount of memory, as 4096 (MiB), 512M or 4G", text);
  }
  return value << shift;
}

absl::StatusOr<uint32_t> ParseSlurmGpus(absl::string_view text) {
  uint64_t sum = 0;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const size_t colon = part.rfind(':');
    const absl::StatusOr<uint32_t> number =
        ParseSlurmCount(colon == part.npos ? part : part.substr(colon + 1), 0);
    if (!number.ok() || colon == 0) {
      return Expected("a number of GPUs, as 4 or a100:4", text);
    }
    sum += *number;
  }
  if (sum <= kMaxCount) return static_cast<uint32_t>(sum);
  return Expected("a number of GPUs, as 4 or a100:4", text);
}

absl::StatusOr<uint32_t> ParseSlurmGres(absl::string_view text) {
  const absl::Status error =
      Expected("gpu:N (a cluster of Cadre has no other generic resources)", text);
  if (absl::EqualsIgnoreCase(text, "none")) return 0;
  uint64_t sum = 0;
  for (absl::string_view resource : absl::StrSplit(text, ',')) {
    absl::ConsumePrefix(&resource, "gres:");
    absl::ConsumePrefix(&resource, "gres/");
    // "gpu", "gpu:2", "gpu:a100" or "gpu:a100:2".
    const std::vector<absl::string_view> parts = absl::StrSplit(resource, ':');
    if (parts[0] != "gpu" || parts.size() > 3 || parts.back().empty()) return error;
    const bool counted = parts.size() == 3 || absl::ascii_isdigit(parts.back()[0]);
    const absl::StatusOr<uint32_t> number = counted ? ParseSlurmCount(parts.back(), 0) : 1;
    if (!number.ok()) return error;
    sum += *number;
  }
  return sum <= kMaxCount ? absl::StatusOr<uint32_t>(static_cast<uint32_t>(sum)) : error;
}

absl::StatusOr<int> ParseSlurmSignal(absl::string_view text) {
  uint64_t number = 0;
  if (Digits(text, &number) && number > 0 && number < NSIG) return static_cast<int>(number);
  std::string name = absl::AsciiStrToUpper(text);
  if (absl::StartsWith(name, "SIG")) name.erase(0, 3);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* const known = sigabbrev_np(signal);
    if (known != nullptr && name == known) return signal;
  }
  return Expected("a signal, as TERM, SIGUSR1 or 15", text);
}

absl::StatusOr<SlurmWarning> ParseSlurmWarning(absl::string_view text) {
  SlurmWarning warning;
  absl::string_view rest = text;
  const size_t colon = rest.find(':');
  if (colon != rest.npos) {
    // "R" is about reservations, which there are none of.
    for (const char c : rest.substr(0, colon)) {
      if (c != 'B' && c != 'R') return Expected("[B:]SIGNAL[@SECONDS]", text);
      warning.script = warning.script || c == 'B';
    }
    rest.remove_prefix(colon + 1);
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(rest, absl::MaxSplits('@', 1));
  uint64_t seconds = kDefaultWarningSeconds;
  if (absl::StrContains(rest, '@') &&
      (!Digits(parts.second, &seconds) || seconds > kMaxWarningSeconds)) {
    return Expected("[B:]SIGNAL[@SECONDS] with at most 65535 seconds", text);
  }
  const absl::StatusOr<int> signal = ParseSlurmSignal(parts.first);
  if (!signal.ok()) return signal.status();
  warning.signal = *signal;
  warning.before = absl::Seconds(seconds);
  return warning;
}

namespace {

// "5", "5-9" or "5-9:2".
absl::Status AddIndices(absl::string_view range, absl::string_view text,
                        std::set<uint32_t>* indices) {
  const absl::Status error = Expected("indices, as 0-9, 1,3,5-9:2 or 0-9%3", text);
  const std::pair<absl::string_view, absl::string_view> with_step =
      absl::StrSplit(range, absl::MaxSplits(':', 1));
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(with_step.first, absl::MaxSplits('-', 1));
  const bool is_range = absl::StrContains(with_step.first, '-');
  uint64_t first = 0, last = 0, step = 1;
  if (!Digits(ends.first, &first) || (is_range && !Digits(ends.second, &last))) return error;
  if (!is_range) last = first;
  if (absl::StrContains(range, ':')) {
    if (!is_range || !Digits(with_step.second, &step) || step == 0) return error;
  }
  if (last < first) return error;
  if (last > kMaxArrayIndex) {
    return absl::InvalidArgumentError(
        absl::StrCat("an index is at most ", kMaxArrayIndex, ", got ", last));
  }
  for (uint64_t index = first; index <= last; index += step) {
    indices->insert(static_cast<uint32_t>(index));
    if (indices->size() <= kMaxArrayElements) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("an array has at most ", kMaxArrayElements,
                     " elements; submit several arrays, or let each element do more"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SlurmArray> ParseSlurmArray(absl::string_view text) {
  SlurmArray array;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('%', 1));
  if (absl::StrContains(text, '%')) {
    const absl::StatusOr<uint32_t> at_once = ParseSlurmCount(parts.second, 1);
    if (!at_once.ok()) return Expected("a number of elements from 1 after '%'", text);
    array.at_once = *at_once;
  }
  std::set<uint32_t> indices;
  for (const absl::string_view range : absl::StrSplit(parts.first, ',')) {
    RETURN_IF_ERROR(AddIndices(range, text, &indices));
  }
  array.indices.assign(indices.begin(), indices.end());
  return array;
}

absl::StatusOr<std::vector<std::string>> ParseSlurmConstraint(absl::string_view text) {
  for (const char c : text) {
    if (!absl::StrContains("[](){}*!", c)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(text),
                     ": brackets and numbers of nodes are not possible; expected "
                     "labels with '&' and '|' between them, as \"a&b\" or \"a|b\""));
  }
  std::vector<std::string> all;
  char before = '&';
  absl::string_view rest = text;
  while (true) {
    const size_t end = rest.find_first_of("&|,");
    const absl::string_view one = rest.substr(0, end);
    const absl::StatusOr<std::string> label = ParseNodeLabel(one);
    if (!label.ok()) return Expected("labels, as \"a&b\" or \"a|b\"", text);
    if (before == '|') {
      // "a&b|c" is "a|c" and "b|c".
      for (std::string& alternatives : all) absl::StrAppend(&alternatives, "|", one);
    } else {
      all.push_back(*label);
    }
    if (end == rest.npos) return all;
    before = rest[end];
    rest.remove_prefix(end + 1);
  }
}

absl::StatusOr<std::vector<std::string>> ParseSlurmHosts(absl::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, ExpandHosts(text));
  if (hosts.empty()) return Expected("names of nodes, as n1,n2 or n[1-3]", text);
  std::vector<std::string> once;
  std::set<std::string> seen;
  for (const std::string& host : hosts) {
    ASSIGN_OR_RETURN(std::string name, ParseNodeName(host));
    if (seen.insert(name).second) once.push_back(std::move(name));
  }
  return once;
}

std::vector<std::string> SplitQuoted(absl::string_view text) {
  std::vector<std::string> parts = {""};
  char quote = '\0';
  for (const char c : text) {
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        parts.back() += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace cadre::launcher
