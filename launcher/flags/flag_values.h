// Converts a flag's text to a value, with errors that name the flag. For the files that parse the
// flags of `cadre run`.
#ifndef CADRE_LAUNCHER_FLAGS_FLAG_VALUES_H_
#define CADRE_LAUNCHER_FLAGS_FLAG_VALUES_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "launcher/flags/settings.h"

namespace cadre::launcher {

inline absl::Status Named(const Setting& setting, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(setting.origin, ": ", status.message()));
}

// Parses setting `name` with `parse`, if it is set, and passes the result to `store`.
template <typename Parse, typename Store>
absl::Status Take(const Settings& settings, const char* name, Parse parse, Store store) {
  const std::optional<Setting> setting = settings.Get(name);
  if (!setting.has_value()) return absl::OkStatus();
  auto value = parse(setting->value);
  if (!value.ok()) return Named(*setting, value.status());
  store(*std::move(value));
  return absl::OkStatus();
}

inline absl::StatusOr<std::string> Text(const std::string& text) { return text; }

// A host's name or address. Whether the machine exists shows only when others connect.
inline absl::StatusOr<std::string> ParseAddress(const std::string& text) {
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || absl::string_view(".:-_%[]").find(c) != absl::string_view::npos) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("expected a host's name or address, got ", Quoted(text)));
  }
  return text;
}

// Refuses text of several lines.
inline absl::StatusOr<std::string> OneLineText(const std::string& text) {
  if (!HasControlCharacters(text)) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("expected one line without control characters, got ", Quoted(text)));
}

inline absl::StatusOr<absl::Duration> Seconds(const std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds >= 0 && seconds < 1e9) {
    return absl::Seconds(seconds);
  }
  return absl::InvalidArgumentError(absl::StrCat("expected seconds, got '", text, "'"));
}

template <typename Parse>
auto ListOf(Parse parse) {
  return [parse](const std::string& text)
             -> absl::StatusOr<std::vector<typename decltype(parse(text))::value_type>> {
    std::vector<typename decltype(parse(text))::value_type> values;
    // An empty text is an empty list; a comma needs an item on both sides.
    if (text.empty()) return values;
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      auto value = parse(std::string(absl::StripAsciiWhitespace(part)));
      if (!value.ok()) return value.status();
      values.push_back(*std::move(value));
    }
    return values;
  };
}

template <typename Choice>
auto OneOf(std::vector<std::pair<std::string, Choice>> choices) {
  return [choices](const std::string& text) -> absl::StatusOr<Choice> {
    std::string expected;
    for (const auto& [word, choice] : choices) {
      if (word == text) return choice;
      absl::StrAppend(&expected, expected.empty() ? "" : ", ", word);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("expected one of ", expected, ", got '", text, "'"));
  };
}

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_FLAG_VALUES_H_
