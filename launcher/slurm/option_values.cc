#include "launcher/slurm/option_values.h"

#include <signal.h>
#include <string.h>

#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace cadre::launcher {
namespace {

constexpr uint32_t kMaxCount = 1 << 30;
constexpr uint64_t kMaxMebibytes = uint64_t{1} << 40;

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
