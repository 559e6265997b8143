// Parses the lines of scripts. For tests.
#ifndef CADRE_RENDEZVOUS_TESTING_SCRIPT_LINE_H_
#define CADRE_RENDEZVOUS_TESTING_SCRIPT_LINE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// One event of a script (script.h): words and key=value pairs. Check() reports what does not fit.
class ScriptLine {
 public:
  explicit ScriptLine(absl::string_view text) {
    for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> pair =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (absl::StrContains(word, '=')) {
        named_.emplace(pair.first, pair.second);
      } else {
        words_.emplace_back(word);
      }
    }
  }

  std::string Word(size_t index) {
    used_words_ = std::max(used_words_, index + 1);
    if (index < words_.size()) return words_[index];
    return SetError("a word is missing"), "";
  }
  bool HasWord(size_t index) const { return index < words_.size(); }
  int64_t Number(size_t index) { return ToNumber(Word(index)); }
  bool Has(const std::string& key) const { return named_.count(key) != 0; }
  std::string Text(const std::string& key, const std::string& otherwise = "") {
    used_.insert(key);
    return Has(key) ? named_[key] : otherwise;
  }
  int64_t Number(const std::string& key, int64_t otherwise) {
    return Has(key) ? ToNumber(Text(key)) : otherwise;
  }
  absl::Duration ToDuration(const std::string& text) {
    absl::Duration duration;
    if (!absl::ParseDuration(text, &duration)) SetError("no duration: " + text);
    return duration;
  }
  int64_t ToNumber(const std::string& text) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(text, &number)) SetError("no number: " + text);
    return number;
  }
  void SetError(const std::string& what) {
    if (error_.empty()) error_ = what;
  }
  // Whether everything was understood and used.
  absl::Status Check() {
    if (used_words_ < words_.size()) SetError("nothing to do with: " + words_[used_words_]);
    for (const auto& [key, value] : named_) {
      if (used_.count(key) == 0) SetError("nothing to do with: " + key);
    }
    return error_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error_);
  }

 private:
  std::vector<std::string> words_;
  std::map<std::string, std::string> named_;
  size_t used_words_ = 0;
  std::set<std::string> used_;
  std::string error_;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_SCRIPT_LINE_H_
