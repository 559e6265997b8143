// What the pages name is there: Bazel's targets and the flags they are given, test cases, files,
// links; and every page that shows a command is read by a test that types it. Reads the checkout
// itself, where this test's README.md points.
#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

// Programs that pages tell their readers to start, and the tests that do so. Bazel's commands are
// only looked at.
constexpr const char* kTyped[] = {"cadre", "mpirun", "sbatch", "srun"};
constexpr const char* kTypists[] = {"tests/compatibility/mpi_test.cc",
                                    "tests/compatibility/slurm_test.cc",
                                    "tests/documentation/documentation_test.cc"};
constexpr const char* kFolders[] = {"agent",       "base",  "bench",         "docs", "examples",
                                    "launcher",    "proto", "rendezvous",    "rpc",  "tests",
                                    "third_party", "tools", "worker_runtime"};

const fs::path& Checkout() {
  static const auto& path = *new fs::path(fs::canonical("README.md").parent_path());
  return path;
}

std::string Text(const fs::path& path) { return ReadFileOrEmpty(path.string()); }

// Its own files below `folder`, one after the other, each with its name.
std::string AllText(const fs::path& folder) {
  std::string all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), kind = entry.path().extension();
    const bool ours =
        name == "BUILD" || kind == ".cc" || kind == ".h" || kind == ".py" || kind == ".txt";
    if (ours && entry.is_regular_file()) absl::StrAppend(&all, name, "\n", Text(entry.path()));
  }
  return all;
}

// Relative to the checkout.
std::vector<std::string> Pages() {
  std::vector<std::string> pages = {"README.md", "CONTRIBUTING.md", "bench/README.md"};
  for (const auto& entry : fs::directory_iterator(Checkout() / "docs")) {
    if (entry.path().extension() == ".md")
      pages.push_back("docs/" + entry.path().filename().string());
  }
  for (const auto& entry : fs::directory_iterator(Checkout() / "examples")) {
    const std::string page =
        absl::StrCat("examples/", entry.path().filename().string(), "/README.md");
    if (fs::exists(Checkout() / page)) pages.push_back(page);
  }
  EXPECT_GT(pages.size(), 20u);
  return pages;
}

struct Code {
  // What stands between single backticks, and the lines of blocks that name no language.
  std::vector<std::string> spans, lines;
};

Code CodeOf(const std::string& page) {
  Code code;
  std::string prose;
  bool inside = false, typed = false;
  for (const absl::string_view line : absl::StrSplit(Text(Checkout() / page), '\n')) {
    if (absl::StartsWith(line, "```")) {
      inside = !inside;
      typed = inside && line.size() == 3;
    } else if (!inside) {
      absl::StrAppend(&prose, line, "\n");
    } else if (typed) {
      code.lines.emplace_back(line.substr(0, line.find("  #")));
    }
  }
  const std::vector<std::string> pieces = absl::StrSplit(prose, '`');
  for (size_t i = 1; i < pieces.size(); i += 2) code.spans.push_back(pieces[i]);
  return code;
}

std::vector<std::string> AllCode(const std::string& page) {
  Code code = CodeOf(page);
  code.spans.insert(code.spans.end(), code.lines.begin(), code.lines.end());
  return code.spans;
}

// The folder of "//folder:name", "//folder" or "//folder/...", and the name there.
std::pair<fs::path, std::string> Split(absl::string_view label) {
  absl::ConsumePrefix(&label, "//");
  const std::pair<std::string, std::string> parts = absl::StrSplit(label, absl::MaxSplits(':', 1));
  const std::string folder(absl::StripSuffix(parts.first, "/..."));
  const bool all = folder.size() != parts.first.size();
  std::string name = parts.second;
  if (name.empty() && !all) name = fs::path(folder).filename().string();
  return {Checkout() / folder, name};
}

std::vector<std::string> LabelsIn(const std::string& code) {
  static const std::regex label("(^|[^:/\\w])(//[a-z][\\w/]*(:\\w[\\w-]*(\\.\\w+)*|/\\.\\.\\.)?)");
  std::vector<std::string> labels;
  for (std::sregex_iterator at(code.begin(), code.end(), label), end; at != end; ++at) {
    labels.push_back((*at)[2]);
  }
  return labels;
}

TEST(NamesTest, BazelsTargets) {
  size_t seen = 0;
  for (const std::string& page : Pages()) {
    for (const std::string& code : AllCode(page)) {
      for (const std::string& label : LabelsIn(code)) {
        ++seen;
        const auto [folder, name] = Split(label);
        ASSERT_TRUE(fs::is_directory(folder)) << page << ": " << label;
        const std::string build = Text(folder / "BUILD");
        const std::string quoted = absl::StrCat("\"", name, "\"");
        EXPECT_TRUE(name.empty() || absl::StrContains(build, quoted)) << page << ": " << label;
      }
    }
  }
  EXPECT_GT(seen, 50u);
}

// A word of a command, as its program's sources have it.
std::string AsInSources(absl::string_view word) {
  if (absl::ConsumePrefix(&word, "--test_filter=")) {
    return absl::StrReplaceAll(word, {{"'", ""}, {"*", ""}});
  }
  if (absl::ConsumePrefix(&word, "--test_env=")) return std::string(word);
  return std::string(word.substr(0, word.find('=')));
}

TEST(NamesTest, FlagsOfBazelsPrograms) {
  size_t seen = 0;
  for (const std::string& page : Pages()) {
    for (const std::string& code : AllCode(page)) {
      const std::vector<std::string> words = absl::StrSplit(code, ' ', absl::SkipEmpty());
      const std::vector<std::string> labels = LabelsIn(code);
      if (!absl::StrContains(code, "bazel ") || labels.size() != 1) continue;
      const std::string sources = AllText(Split(labels[0]).first);
      for (const std::string& word : words) {
        if (word.size() < 3 || !absl::StartsWith(word, "--")) continue;
        ++seen;
        EXPECT_TRUE(absl::StrContains(sources, AsInSources(word)))
            << page << ": " << labels[0] << " does not know " << word;
      }
    }
  }
  EXPECT_GT(seen, 8u);
}

// The tables of docs/faults.md are made from the lines beside the tests.
TEST(NamesTest, FaultsAreThoseBesideTheTests) {
  ProcessOptions check;
  check.argv = {(Checkout() / "tools/faults").string(), "--check"};
  const auto process = RunToEnd(check);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ((*process)->Wait(), 0) << OutputOf(**process);
}

// tools/pictures writes the sum of a picture's text into the picture.
TEST(NamesTest, PicturesAreOfTheTextsBesideThem) {
  size_t seen = 0;
  for (const auto& entry : fs::directory_iterator(Checkout() / "docs/images")) {
    fs::path picture = entry.path();
    if (picture.extension() != ".dot") continue;
    ++seen;
    ProcessOptions sum;
    sum.argv = {"sha256sum", picture.string()};
    const auto process = RunToEnd(sum);
    ASSERT_TRUE(process.ok()) << process.status();
    const std::string hex = (*process)->standard_output().substr(0, 64);
    ASSERT_EQ(hex.size(), 64u) << OutputOf(**process);
    EXPECT_TRUE(absl::StrContains(Text(picture.replace_extension(".svg")), hex))
        << entry.path() << " was changed since it was drawn: run tools/pictures";
  }
  EXPECT_GT(seen, 1u);
}

TEST(NamesTest, Files) {
  const std::set<std::string> folders(std::begin(kFolders), std::end(kFolders));
  size_t seen = 0;
  for (const std::string& page : Pages()) {
    for (const std::string& code : AllCode(page)) {
      for (const absl::string_view word : absl::StrSplit(code, absl::ByAnyChar(" \n"))) {
        const size_t slash = word.find('/');
        const bool plain = word.find_first_not_of(
                               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789_./") == absl::string_view::npos;
        if (slash == absl::string_view::npos || !plain) continue;
        if (folders.count(std::string(word.substr(0, slash))) == 0) continue;
        ++seen;
        EXPECT_TRUE(fs::exists(Checkout() / std::string(word))) << page << ": " << word;
      }
    }
  }
  EXPECT_GT(seen, 20u);
}

// A heading as a link names it.
std::string Anchor(absl::string_view heading) {
  std::string anchor;
  for (const char c : absl::StripAsciiWhitespace(heading)) {
    if (c == ' ') anchor += '-';
    if (absl::ascii_isalnum(c) || c == '-' || c == '_') anchor += absl::ascii_tolower(c);
  }
  return anchor;
}

TEST(NamesTest, Links) {
  static const std::regex link("\\]\\(([^)\\s]+)\\)");
  size_t seen = 0;
  for (const std::string& page : Pages()) {
    const std::string text = Text(Checkout() / page);
    for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at) {
      const std::string target = (*at)[1];
      if (absl::StartsWith(target, "https://")) continue;
      ++seen;
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(target, absl::MaxSplits('#', 1));
      const fs::path file =
          parts.first.empty() ? Checkout() / page : (Checkout() / page).parent_path() / parts.first;
      EXPECT_TRUE(fs::exists(file)) << page << ": " << target;
      if (parts.second.empty()) continue;
      std::set<std::string> anchors;
      for (absl::string_view line : absl::StrSplit(Text(file), '\n')) {
        const size_t level = line.find_first_not_of('#');
        if (level != 0 && level != absl::string_view::npos) {
          anchors.insert(Anchor(line.substr(level)));
        }
      }
      EXPECT_THAT(anchors, testing::Contains(parts.second)) << page << ": " << target;
    }
  }
  EXPECT_GT(seen, 50u);
}

TEST(NamesTest, EveryPageThatShowsACommandIsTyped) {
  std::string typists;
  for (const char* test : kTypists) absl::StrAppend(&typists, Text(Checkout() / test));
  size_t seen = 0;
  for (const std::string& page : Pages()) {
    if (page != "README.md" && !absl::StartsWith(page, "docs/")) continue;
    const std::vector<std::string> lines = CodeOf(page).lines;
    const bool shows = std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return std::any_of(std::begin(kTyped), std::end(kTyped), [&](const char* program) {
        return absl::StartsWith(line, absl::StrCat(program, " "));
      });
    });
    if (!shows) continue;
    ++seen;
    EXPECT_TRUE(absl::StrContains(typists, absl::StrCat("\"", page, "\""))) << page;
  }
  EXPECT_GT(seen, 9u);
}

}  // namespace
}  // namespace cadre
