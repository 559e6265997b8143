// The values of a job's fields: their forms, and what is refused.
#include "launcher/spec/scalars.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/workers/worker_start.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"
#include "rendezvous/state/policy.h"

namespace cadre::launcher {
namespace {

absl::Status Expected(absl::string_view what, absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", what, ", got '", got.substr(0, 64), "'"));
}

bool AllDigits(absl::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
  }
  return true;
}

// Splits "2..4" in two. Returns false if the text has no separator.
bool Cut(absl::string_view text, absl::string_view separator, absl::string_view* low,
         absl::string_view* high) {
  const size_t at = text.find(separator);
  if (at == absl::string_view::npos) return false;
  *low = text.substr(0, at);
  *high = text.substr(at + separator.size());
  return true;
}

constexpr char kDurationForm[] = "a duration such as 90s, 10m, 1h30m or 500ms";

}  // namespace

absl::StatusOr<absl::Duration> ParseDuration(absl::string_view text) {
  static constexpr struct {
    absl::string_view unit;
    int64_t milliseconds;
  } kUnits[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
  absl::string_view left = text;
  int64_t milliseconds = 0;
  size_t next_unit = 0;
  if (left.empty()) return Expected(kDurationForm, text);
  while (!left.empty()) {
    size_t digits = 0;
    while (digits < left.size() && left[digits] >= '0' && left[digits] <= '9') ++digits;
    size_t letters = digits;
    while (letters < left.size() && std::isalpha(static_cast<unsigned char>(left[letters]))) {
      ++letters;
    }
    int64_t amount = 0;
    // Nine digits of hours are over a hundred thousand years and still fit.
    if (digits == 0 || digits > 9 || !absl::SimpleAtoi(left.substr(0, digits), &amount)) {
      return Expected(kDurationForm, text);
    }
    const absl::string_view unit = left.substr(digits, letters - digits);
    while (next_unit < 4 && kUnits[next_unit].unit != unit) ++next_unit;
    if (next_unit == 4) return Expected(kDurationForm, text);
    milliseconds += amount * kUnits[next_unit].milliseconds;
    ++next_unit;
    left.remove_prefix(letters);
  }
  return absl::Milliseconds(milliseconds);
}

absl::StatusOr<std::pair<absl::Duration, absl::Duration>> ParseDurationRange(
    absl::string_view text) {
  absl::string_view low = text;
  absl::string_view high = text;
  Cut(text, "..", &low, &high);
  ASSIGN_OR_RETURN(const absl::Duration from, ParseDuration(low));
  ASSIGN_OR_RETURN(const absl::Duration to, ParseDuration(high));
  if (from > to) return Expected("a range from the shorter to the longer, such as 1s..1m", text);
  return std::make_pair(from, to);
}

absl::StatusOr<uint32_t> ParseCount(absl::string_view text) {
  uint32_t value = 0;
  if (!AllDigits(text)) return Expected("a number", text);
  if (!absl::SimpleAtoi(text, &value)) return Expected("a number from 0 to 4294967295", text);
  return value;
}

absl::StatusOr<bool> ParseBoolean(absl::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return absl::InvalidArgumentError(absl::StrCat("expected true or false, got '", text, "'"));
}

absl::StatusOr<std::string> ParseModuleName(absl::string_view text) {
  for (const absl::string_view part : absl::StrSplit(text, '.')) {
    const bool good = !part.empty() && !absl::ascii_isdigit(part[0]) &&
                      std::all_of(part.begin(), part.end(), [](char c) {
                        return absl::ascii_isalnum(c) || c == '_' || (c & 0x80) != 0;
                      });
    if (!good) return Expected("the name of a Python module, such as torch.nn", text);
  }
  return std::string(text);
}

absl::StatusOr<uint32_t> ParseExitCode(absl::string_view text) {
  const absl::StatusOr<uint32_t> code = ParseCount(text);
  if (code.ok() && *code >= 1 && *code <= 255) return code;
  return Expected("an exit code from 1 to 255", text);
}

absl::StatusOr<uint64_t> ParseSize(absl::string_view text) {
  static constexpr struct {
    absl::string_view unit;
    int shift;
  } kUnits[] = {{"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  uint64_t amount = 0;
  for (const auto& unit : kUnits) {
    if (text.substr(digits) != unit.unit || !absl::SimpleAtoi(text.substr(0, digits), &amount)) {
      continue;
    }
    if (amount > (std::numeric_limits<uint64_t>::max() >> unit.shift)) break;
    return amount << unit.shift;
  }
  return Expected("a size such as 512MiB or 8GiB", text);
}

absl::StatusOr<v1::NodeRange> ParseNodeRange(absl::string_view text) {
  absl::string_view low = text;
  absl::string_view high = text;
  if (!Cut(text, "..", &low, &high)) Cut(text, ":", &low, &high);
  const absl::StatusOr<uint32_t> min = ParseCount(low);
  const absl::StatusOr<uint32_t> max = ParseCount(high);
  if (!min.ok() || !max.ok() || *min < 1 || *min > *max) {
    return Expected("a number of nodes from 1, or a range such as 2..4", text);
  }
  v1::NodeRange range;
  range.set_min(*min);
  range.set_max(*max);
  return range;
}

absl::StatusOr<v1::WorkersPerNode> ParseWorkersPerNode(absl::string_view text) {
  v1::WorkersPerNode workers;
  if (text == "gpu") {
    workers.set_kind(v1::WorkersPerNode::GPU);
  } else if (text == "cpu") {
    workers.set_kind(v1::WorkersPerNode::CPU);
  } else if (text == "auto") {
    workers.set_kind(v1::WorkersPerNode::AUTO);
  } else {
    const absl::StatusOr<uint32_t> count = ParseCount(text);
    // Limited here because resources are allocated for each worker before a server could refuse the
    // number.
    if (!count.ok() || *count < 1 || *count > state::kMaxSlotsPerNode) {
      return Expected(
          absl::StrCat("a number from 1 to ", state::kMaxSlotsPerNode, ", gpu, cpu or auto"), text);
    }
    workers.set_kind(v1::WorkersPerNode::COUNT);
    workers.set_count(*count);
  }
  return workers;
}

absl::StatusOr<v1::FailureCause> ParseFailureCause(absl::string_view text) {
  static constexpr struct {
    absl::string_view name;
    v1::FailureCause cause;
  } kCauses[] = {{"crash", v1::CRASH},
                 {"hang", v1::HANG},
                 {"out_of_memory", v1::OUT_OF_MEMORY},
                 {"node_lost", v1::NODE_LOST},
                 {"preempted", v1::PREEMPTED},
                 {"start_timeout", v1::START_TIMEOUT}};
  for (const auto& known : kCauses) {
    if (known.name == text) return known.cause;
  }
  if (text == "exec_failed" || text == "load_failed") {
    return absl::InvalidArgumentError(absl::StrCat(
        text, " is never tried again: the program, or a part of it, would be missing again"));
  }
  return Expected("crash, hang, out_of_memory, node_lost, preempted or start_timeout", text);
}

absl::StatusOr<v1::ElasticPolicy::ScaleUp> ParseScaleUp(absl::string_view text) {
  if (text == "immediately") return v1::ElasticPolicy::IMMEDIATELY;
  if (text == "at_checkpoint") return v1::ElasticPolicy::AT_CHECKPOINT;
  if (text == "never") return v1::ElasticPolicy::NEVER;
  return Expected("immediately, at_checkpoint or never", text);
}

absl::StatusOr<int> ParseSignal(absl::string_view text) {
  const absl::string_view name = absl::StripPrefix(text, "SIG");
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* const known = sigabbrev_np(signal);
    if (known == nullptr || name != known) continue;
    if (signal == SIGKILL || signal == SIGSTOP) {
      return Expected("a signal that a program can catch, such as USR1", text);
    }
    return signal;
  }
  return Expected("a signal's name, such as USR1", text);
}

absl::StatusOr<std::string> ParseNodeName(absl::string_view text) {
  const bool good = !text.empty() && text.size() <= kMaxHostNameBytes &&
                    absl::ascii_isalnum(text[0]) &&
                    std::all_of(text.begin(), text.end(), [](char c) {
                      return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
                    });
  if (good) return std::string(text);
  return Expected("the name of a node, of letters, digits and .-_", text);
}

absl::StatusOr<std::string> ParseNodeLabel(absl::string_view text) {
  for (const absl::string_view one : absl::StrSplit(text, '|')) {
    const bool good = !one.empty() && one[0] != '=' && one.back() != '=' &&
                      std::all_of(one.begin(), one.end(), [](char c) {
                        return absl::ascii_isgraph(c) && !absl::StrContains("&,()[]*!", c);
                      });
    if (!good) return Expected("a label such as rack=7 or gpu, or several with '|'", text);
  }
  return std::string(text);
}

absl::StatusOr<std::string> ParseSlurmName(absl::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains("_-.,:+@/", c)) {
      return Expected("a name of letters, digits and _-.,:+@/", text.substr(0, 64));
    }
  }
  return std::string(text);
}

absl::StatusOr<std::string> ParseSbatchOption(absl::string_view text) {
  const bool one_line = std::none_of(text.begin(), text.end(), absl::ascii_iscntrl);
  if (one_line && absl::StartsWith(text, "-")) return std::string(text);
  return Expected("an option of sbatch, such as --time=04:00:00", text.substr(0, 64));
}

absl::Status CheckVariableName(absl::string_view name) {
  if (name.empty() || absl::StrContains(name, "=")) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' cannot be a variable's name"));
  }
  if (!agent::IsReservedVariable(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Cadre sets '", name, "' for each worker; leave it out"));
}

absl::Status CheckJobName(absl::string_view name) {
  bool good = !name.empty() && name.size() <= 63 && name[0] != '-';
  for (const char c : name) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
  }
  if (good) return absl::OkStatus();
  return Expected("a name of at most 63 small letters, digits and dashes", name);
}

}  // namespace cadre::launcher
