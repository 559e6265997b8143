#include "launcher/spec/queue_values.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/civil_time.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::launcher {
namespace {

// The longest delay of "after:JOB+MINUTES": a year.
constexpr uint32_t kMaxDelayMinutes = 365 * 24 * 60;

absl::Status Expected(absl::string_view what, absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", Quoted(got)));
}

bool Digits(absl::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return !text.empty();
}

absl::Time Midnight(absl::Time now, absl::TimeZone zone) {
  return absl::FromCivil(absl::ToCivilDay(now, zone), zone);
}

// "-2hours" after "now".
absl::StatusOr<absl::Duration> ParseOffset(absl::string_view text) {
  const absl::Status error = absl::InvalidArgumentError(
      "expected now and an offset, as now+1hour, now-2hours or now-1day");
  const bool back = absl::ConsumePrefix(&text, "-");
  if (!back && !absl::ConsumePrefix(&text, "+")) return error;
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
  uint32_t number = 0;
  if (!absl::SimpleAtoi(text.substr(0, digits), &number)) return error;
  absl::string_view unit = text.substr(digits);
  absl::ConsumeSuffix(&unit, "s");
  absl::Duration one;
  if (unit.empty() || unit == "second") {
    one = absl::Seconds(1);
  } else if (unit == "minute") {
    one = absl::Minutes(1);
  } else if (unit == "hour") {
    one = absl::Hours(1);
  } else if (unit == "day") {
    one = absl::Hours(24);
  } else if (unit == "week") {
    one = absl::Hours(7 * 24);
  } else {
    return error;
  }
  return back ? -one * number : one * number;
}

// How long after midnight "16:30", "16:30:15" or "4:30pm" is; nullopt: it is no time of a day.
std::optional<absl::CivilSecond> TimeOfDay(absl::string_view text, absl::CivilDay day) {
  std::string clock = absl::AsciiStrToLower(text);
  const bool pm = absl::EndsWith(clock, "pm"), am = absl::EndsWith(clock, "am");
  if (pm || am) clock.resize(clock.size() - 2);
  absl::StripAsciiWhitespace(&clock);
  std::vector<int> numbers;
  for (const absl::string_view part : absl::StrSplit(clock, ':')) {
    int number = 0;
    if (part.size() > 2 || !Digits(part) || !absl::SimpleAtoi(part, &number)) return std::nullopt;
    numbers.push_back(number);
  }
  // "4pm" is a time, "4" is none.
  if (numbers.size() > 3 || (numbers.size() < 2 && !pm && !am)) return std::nullopt;
  numbers.resize(3, 0);
  if ((pm || am) && (numbers[0] < 1 || numbers[0] > 12)) return std::nullopt;
  if (pm || am) numbers[0] = numbers[0] % 12 + (pm ? 12 : 0);
  if (numbers[0] > 23 || numbers[1] > 59 || numbers[2] > 59) return std::nullopt;
  return absl::CivilSecond(day.year(), day.month(), day.day(), numbers[0], numbers[1], numbers[2]);
}

}  // namespace

absl::StatusOr<absl::Time> ParseSlurmDate(absl::string_view text, absl::Time now,
                                          absl::TimeZone zone) {
  const std::string word = absl::AsciiStrToLower(text);
  const absl::Time midnight = Midnight(now, zone);
  if (word == "now") return now;
  if (word == "today" || word == "midnight") return midnight;
  if (word == "noon") return midnight + absl::Hours(12);
  if (word == "yesterday") return Midnight(midnight - absl::Hours(12), zone);
  if (absl::StartsWith(word, "now")) {
    ASSIGN_OR_RETURN(const absl::Duration offset, ParseOffset(absl::string_view(word).substr(3)));
    return now + offset;
  }
  absl::Time time;
  std::string ignored;
  const std::string day = absl::FormatTime("%Y-%m-%d", now, zone);
  const std::string year = absl::FormatTime("%Y", now, zone);
  for (const char* const form : {"%H:%M", "%H:%M:%S"}) {
    if (absl::ParseTime(absl::StrCat("%Y-%m-%dT", form), absl::StrCat(day, "T", text), zone, &time,
                        &ignored)) {
      return time;
    }
  }
  for (const char* const form : {"%Y-%m-%d", "%m/%d/%y", "%m/%d/%Y", "%m.%d.%y"}) {
    for (const char* const clock : {"", "T%H:%M", "T%H:%M:%S", "-%H:%M", "-%H:%M:%S"}) {
      if (absl::ParseTime(absl::StrCat(form, clock), text, zone, &time, &ignored)) return time;
    }
  }
  for (const char* const form : {"%m/%d", "%m%d"}) {
    for (const char* const clock : {"", "T%H:%M", "T%H:%M:%S", "-%H:%M", "-%H:%M:%S"}) {
      if (absl::ParseTime(absl::StrCat("%Y ", form, clock), absl::StrCat(year, " ", text), zone,
                          &time, &ignored)) {
        return time;
      }
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected a time, as 2026-11-29, 2026-11-29T12:30, 12:30, 11/29 or "
                   "now-2hours, got ",
                   Quoted(text)));
}

absl::StatusOr<absl::Time> ParseTimeToCome(absl::string_view text, absl::Time now,
                                           absl::TimeZone zone) {
  const std::string word = absl::AsciiStrToLower(text);
  const absl::CivilDay today = absl::ToCivilDay(now, zone);
  if (word == "tomorrow") return absl::FromCivil(today + 1, zone);
  static constexpr struct {
    const char* word;
    const char* clock;
  } kWords[] = {{"midnight", "00:00"},
                {"elevenses", "11:00"},
                {"noon", "12:00"},
                {"fika", "15:00"},
                {"teatime", "16:00"}};
  std::string clock = word;
  for (const auto& known : kWords) {
    if (word == known.word) clock = known.clock;
  }
  if (const auto at = TimeOfDay(clock, today)) {
    const absl::Time time = absl::FromCivil(*at, zone);
    if (time > now) return time;
    return absl::FromCivil(*TimeOfDay(clock, today + 1), zone);
  }
  const absl::StatusOr<absl::Time> time = ParseSlurmDate(text, now, zone);
  if (time.ok()) return time;
  return Expected("a time, as 2026-12-01T08:00, 16:30, tomorrow or now+1hour", text);
}

namespace {

struct Kind {
  const char* word;
  v1::Dependency::Kind kind;
};
constexpr Kind kKinds[] = {
    {"after", v1::Dependency::AFTER},
    {"afterany", v1::Dependency::AFTER_ANY},
    {"afterok", v1::Dependency::AFTER_OK},
    {"afternotok", v1::Dependency::AFTER_NOT_OK},
    {"aftercorr", v1::Dependency::AFTER_CORRESPONDING},
};
constexpr char kSingleton[] = "singleton";

// "12", or with minutes "12+5". "12_*" stands for all elements of the array 12.
absl::Status ReadJob(absl::string_view text, v1::Dependency* dependency) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('+', 1));
  const absl::string_view id = absl::StripSuffix(parts.first, "_*");
  if (absl::StrContains(id, '_')) {
    return Expected(
        "the id of a job or of an array (of an element the one that squeue -o %A shows)", text);
  }
  uint64_t job = 0;
  if (!Digits(id) || !absl::SimpleAtoi(id, &job) || job == 0) {
    return Expected("the id of a job", text);
  }
  dependency->set_job(job);
  if (!absl::StrContains(text, '+')) return absl::OkStatus();
  uint32_t minutes = 0;
  if (dependency->kind() != v1::Dependency::AFTER) {
    return Expected("no minutes, which are for after:JOB+MINUTES", text);
  }
  if (!Digits(parts.second) || !absl::SimpleAtoi(parts.second, &minutes) ||
      minutes > kMaxDelayMinutes) {
    return Expected("a number of minutes, a year at most, as in 12+5", text);
  }
  *dependency->mutable_delay() = ToProto(absl::Minutes(minutes));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<v1::Dependency>> ParseDependency(absl::string_view text) {
  v1::Dependency dependency;
  if (absl::EqualsIgnoreCase(text, kSingleton)) {
    dependency.set_kind(v1::Dependency::SINGLETON);
    return std::vector<v1::Dependency>{dependency};
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  for (const Kind& known : kKinds) {
    if (absl::EqualsIgnoreCase(known.word, parts[0])) dependency.set_kind(known.kind);
  }
  if (dependency.kind() == v1::Dependency::KIND_UNSPECIFIED || parts.size() < 2) {
    return Expected(
        "after:JOB[+MINUTES], afterany:JOB, afterok:JOB, afternotok:JOB, aftercorr:JOB or "
        "singleton",
        text);
  }
  std::vector<v1::Dependency> all;
  for (size_t i = 1; i < parts.size(); ++i) {
    v1::Dependency one = dependency;
    RETURN_IF_ERROR(ReadJob(parts[i], &one));
    all.push_back(std::move(one));
  }
  return all;
}

absl::Status ParseDependencies(absl::string_view text, v1::QueueOptions* options) {
  const bool any = absl::StrContains(text, '?');
  if (any && absl::StrContains(text, ',')) {
    return Expected("either ',' (all of them) or '?' (one of them) between dependencies", text);
  }
  options->clear_dependencies();
  options->set_any_dependency(any);
  for (const absl::string_view word : absl::StrSplit(text, any ? '?' : ',')) {
    ASSIGN_OR_RETURN(const std::vector<v1::Dependency> read, ParseDependency(word));
    for (const v1::Dependency& one : read) *options->add_dependencies() = one;
  }
  return absl::OkStatus();
}

std::string DependenciesText(const v1::QueueOptions& options) {
  std::string text;
  for (const v1::Dependency& one : options.dependencies()) {
    absl::StrAppend(&text, text.empty() ? "" : options.any_dependency() ? "?" : ",");
    if (one.kind() == v1::Dependency::SINGLETON) {
      absl::StrAppend(&text, kSingleton);
      continue;
    }
    for (const Kind& known : kKinds) {
      if (known.kind == one.kind()) absl::StrAppend(&text, known.word, ":", one.job());
    }
    const int64_t minutes = one.delay().seconds() / 60;
    if (minutes > 0) absl::StrAppend(&text, "+", minutes);
  }
  return text;
}

std::string IndicesText(const std::vector<uint32_t>& indices) {
  std::string text;
  for (size_t first = 0; first < indices.size();) {
    size_t last = first;
    while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) ++last;
    absl::StrAppend(&text, first == 0 ? "" : ",", indices[first],
                    last == first ? "" : absl::StrCat("-", indices[last]));
    first = last + 1;
  }
  return text;
}

}  // namespace cadre::launcher
