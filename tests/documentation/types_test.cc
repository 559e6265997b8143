// No two types have one qualified name. Reads the checkout itself, where this test's README.md
// points.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

size_t After(absl::string_view text, absl::string_view end, size_t at) {
  const size_t found = text.find(end, at);
  return found == absl::string_view::npos ? text.size() : found + end.size();
}

// What C++ has to skip at `at`: comments, literals and lines of the preprocessor. Else `at`.
size_t AfterWhatIsNoCode(absl::string_view text, size_t at) {
  const absl::string_view rest = text.substr(at);
  if (absl::StartsWith(rest, "//")) return After(text, "\n", at);
  if (absl::StartsWith(rest, "/*")) return After(text, "*/", at);
  if (absl::StartsWith(rest, "R\"")) {
    const absl::string_view mark = rest.substr(2, rest.find('(') - 2);
    return After(text, absl::StrCat(")", mark, "\""), at);
  }
  const char first = rest[0];
  if (first != '"' && first != '\'' && first != '#') return at;
  const char last = first == '#' ? '\n' : first;
  for (++at; at < text.size() && text[at] != last; ++at) at += text[at] == '\\';
  return at + 1;
}

bool IsWord(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// Words, "::" and single characters.
std::vector<std::string> Tokens(absl::string_view text) {
  std::vector<std::string> tokens;
  for (size_t at = 0; at < text.size();) {
    const size_t next = AfterWhatIsNoCode(text, at);
    size_t size = absl::StartsWith(text.substr(at), "::") ? 2 : 1;
    if (next != at) {
      at = next;
      continue;
    }
    if (IsWord(text[at])) {
      // A number may have ' in it.
      const bool number = absl::ascii_isdigit(text[at]);
      while (at + size < text.size() &&
             (IsWord(text[at + size]) || (number && text[at + size] == '\''))) {
        ++size;
      }
    }
    if (!absl::ascii_isspace(text[at])) tokens.emplace_back(text.substr(at, size));
    at += size;
  }
  return tokens;
}

// The classes, structs, unions and enums that a file defines in namespaces that have a name.
class TypesOfFile {
 public:
  explicit TypesOfFile(const std::string& text) : tokens_(Tokens(text)) {
    for (; at_ < tokens_.size(); ++at_) Take(tokens_[at_]);
  }
  const std::set<std::string>& all() const { return all_; }

 private:
  static constexpr char kBlock[] = "{";

  const std::string& Token() const {
    static const auto& end = *new std::string(";");
    return at_ < tokens_.size() ? tokens_[at_] : end;
  }

  void Take(const std::string& token) {
    if (token == "}") {
      if (!open_.empty()) open_.pop_back();
    } else if (token == "{" || (!open_.empty() && open_.back() == kBlock)) {
      if (token == "{") open_.push_back(kBlock);
    } else if (token == "template") {
      SkipParameters();
    } else if (token == "namespace") {
      const std::string name = Name();
      if (Token() == "{") open_.push_back(name);
    } else if (token == "class" || token == "struct" || token == "union" || token == "enum") {
      TakeType();
    }
  }

  void SkipParameters() {
    for (int depth = 0; ++at_ < tokens_.size();) {
      depth += Token() == "<" ? 1 : Token() == ">" ? -1 : 0;
      if (depth == 0) return;
    }
  }

  // The last name before anything else; at_ is behind it then.
  std::string Name() {
    std::string name;
    for (++at_; IsWord(Token()[0]) || Token() == "::"; ++at_) {
      const bool goes_on = Token() == "::" || absl::EndsWith(name, "::");
      if (Token() != "final") name = goes_on ? name + Token() : Token();
    }
    return name;
  }

  void TakeType() {
    const std::string name = Name();
    const bool has_bases = Token() == ":";
    while (has_bases && Token() != "{" && Token() != ";") ++at_;
    if (Token() != "{") {
      --at_;
      return;
    }
    const bool hidden = std::count(open_.begin(), open_.end(), "") > 0;
    if (!name.empty() && !hidden) all_.insert(absl::StrJoin(open_, "::") + "::" + name);
    open_.push_back(kBlock);
  }

  const std::vector<std::string> tokens_;
  size_t at_ = 0;
  std::vector<std::string> open_;  // namespaces, "" for one without a name, and blocks
  std::set<std::string> all_;
};

TEST(TypesTest, WhatCounts) {
  const TypesOfFile types(R"(
    #define STRANGE class Macro {
    class Forward;
    struct stat Get() { struct Local {}; return '}'; }
    namespace a::b {
    template <class T> class MACRO Known final : public Base<T> { struct Inner {}; };
    template <> struct Known<int> {};  // struct Comment {
    enum class Color : int { kRed };
    namespace { struct Hidden {}; }
    struct Known::Part { const char* text = "struct Text {"; };
    }
    extern Entry* first = 0'1;
    struct Plain {} plain;
  )");
  EXPECT_THAT(types.all(),
              testing::ElementsAre("::Plain", "a::b::Color", "a::b::Known", "a::b::Known::Part"));
}

// Two types of one name in one program are undefined, and nobody would say so.
TEST(TypesTest, NoTwoHaveOneName) {
  const fs::path checkout = fs::canonical("README.md").parent_path();
  std::map<std::string, std::vector<std::string>> files;
  for (fs::recursive_directory_iterator at(checkout), end; at != end; ++at) {
    const std::string name = at->path().filename(), kind = at->path().extension();
    if (name[0] == '.' && at->is_directory()) at.disable_recursion_pending();
    if (kind != ".cc" && kind != ".h") continue;
    const TypesOfFile types(ReadFileOrEmpty(at->path()));
    for (const std::string& type : types.all()) {
      files[type].push_back(fs::relative(at->path(), checkout));
    }
  }
  for (const auto& [type, where] : files) {
    EXPECT_EQ(where.size(), 1u) << type << " is defined in " << absl::StrJoin(where, " and ");
  }
  EXPECT_GT(files.size(), 500u);
}

}  // namespace
}  // namespace cadre
