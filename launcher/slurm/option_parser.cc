#include "launcher/slurm/option_parser.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/flags/nearest.h"

namespace cadre::launcher {
namespace {

absl::Status Error(const std::string& text) { return absl::InvalidArgumentError(text); }

// A word of a user inside an error, on one line.
std::string Word(absl::string_view word) { return OneLine(word, 64); }

class Parser {
 public:
  Parser(const std::vector<std::string>& arguments, const std::vector<Option>& table,
         AfterFirstWord after)
      : arguments_(arguments), table_(table), after_(after) {}

  absl::StatusOr<ParsedOptions> Run() {
    while (next_ < arguments_.size()) {
      const std::string& word = arguments_[next_++];
      if (word == "--") break;
      if (absl::StartsWith(word, "--")) {
        RETURN_IF_ERROR(TakeLong(absl::string_view(word).substr(2)));
      } else if (word.size() > 1 && word[0] == '-') {
        RETURN_IF_ERROR(TakeShort(absl::string_view(word).substr(1)));
      } else {
        parsed_.rest.push_back(word);
        if (after_ == AfterFirstWord::kAllWords) break;
      }
    }
    parsed_.rest.insert(parsed_.rest.end(), arguments_.begin() + next_, arguments_.end());
    return std::move(parsed_);
  }

 private:
  absl::Status TakeLong(absl::string_view text) {
    const size_t equals = text.find('=');
    const absl::string_view name = text.substr(0, equals);
    ASSIGN_OR_RETURN(const Option* const option, FindLong(name));
    GivenOption given = {option->name, "", equals != text.npos, absl::StrCat("--", option->name)};
    if (given.has_value) {
      if (option->value == OptionValue::kNone) {
        return Error(absl::StrCat("option '", given.place, "' doesn't allow an argument"));
      }
      given.value = std::string(text.substr(equals + 1));
    } else if (option->value == OptionValue::kRequired) {
      if (next_ == arguments_.size()) {
        return Error(absl::StrCat("option '", given.place, "' requires an argument"));
      }
      given.value = arguments_[next_++];
      given.has_value = true;
    }
    parsed_.options.push_back(std::move(given));
    return absl::OkStatus();
  }

  // Takes the short options of one word: "lN2" is -l and -N with the value 2.
  absl::Status TakeShort(absl::string_view letters) {
    while (!letters.empty()) {
      const char letter = letters[0];
      letters.remove_prefix(1);
      const Option* const option = FindShort(letter);
      if (option == nullptr) {
        return Error(absl::StrCat("invalid option -- '", Word(absl::string_view(&letter, 1)), "'"));
      }
      GivenOption given = {option->name, "", false, std::string("-") + letter};
      if (given.name.empty()) given.name = std::string(1, letter);
      if (option->value != OptionValue::kNone && !letters.empty()) {
        given.value = std::string(letters);
        given.has_value = true;
        letters = "";
      } else if (option->value == OptionValue::kRequired) {
        if (next_ == arguments_.size()) {
          return Error(
              absl::StrCat("option requires an argument -- '", absl::string_view(&letter, 1), "'"));
        }
        given.value = arguments_[next_++];
        given.has_value = true;
      }
      parsed_.options.push_back(std::move(given));
    }
    return absl::OkStatus();
  }

  const Option* FindShort(char letter) const {
    for (const Option& option : table_) {
      if (option.short_name == letter && letter != '\0') return &option;
    }
    return nullptr;
  }

  absl::StatusOr<const Option*> FindLong(absl::string_view name) const {
    std::vector<const Option*> begin;
    for (const Option& option : table_) {
      if (option.name.empty()) continue;
      if (option.name == name) return &option;
      if (absl::StartsWith(option.name, name)) begin.push_back(&option);
    }
    if (begin.empty() || name.empty()) return UnknownError(name);
    if (begin.size() == 1) return begin[0];
    std::string possible;
    for (const Option* const option : begin) absl::StrAppend(&possible, " '--", option->name, "'");
    return Error(absl::StrCat("option '--", name, "' is ambiguous; possibilities:", possible));
  }

  absl::Status UnknownError(absl::string_view name) const {
    std::vector<std::string> names;
    for (const Option& option : table_) {
      if (!option.name.empty()) names.push_back(option.name);
    }
    const std::string meant = Nearest(name, names);
    return Error(
        absl::StrCat("unrecognized option '--", Word(name), "'",
                     meant.empty() ? "" : absl::StrCat("; did you mean '--", meant, "'?")));
  }

  const std::vector<std::string>& arguments_;
  const std::vector<Option>& table_;
  const AfterFirstWord after_;
  // The index of the next argument.
  size_t next_ = 0;
  ParsedOptions parsed_;
};

}  // namespace

absl::StatusOr<ParsedOptions> ParseOptions(const std::vector<std::string>& arguments,
                                           const std::vector<Option>& table, AfterFirstWord after) {
  return Parser(arguments, table, after).Run();
}

const GivenOption* FindOption(const ParsedOptions& parsed, absl::string_view name) {
  const GivenOption* found = nullptr;
  for (const GivenOption& option : parsed.options) {
    if (option.name == name) found = &option;
  }
  return found;
}

}  // namespace cadre::launcher
