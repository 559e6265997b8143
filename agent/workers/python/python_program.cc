#include "agent/workers/python_program.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace cadre::agent {
namespace {

bool IsInterpreter(absl::string_view path) {
  absl::string_view name = path.substr(path.rfind('/') + 1);
  if (!absl::ConsumePrefix(&name, "python")) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
}

// Options without a value, those that a program can be warm with.
constexpr absl::string_view kPlainOptions = "bBdiOPqRsuvx";
constexpr absl::string_view kOptionsWithValue = "WX";

}  // namespace

std::optional<PythonProgram> PythonProgramOf(const std::vector<std::string>& argv) {
  if (argv.empty() || !IsInterpreter(argv[0])) return std::nullopt;
  for (size_t i = 1; i < argv.size(); ++i) {
    absl::string_view word = argv[i];
    if (word == "-") return std::nullopt;  // the program is standard input
    if (word == "--check-hash-based-pycs") {
      ++i;
      continue;
    }
    if (absl::StartsWith(word, "--")) return std::nullopt;
    if (!absl::ConsumePrefix(&word, "-")) return PythonProgram{argv[i], ""};
    for (; !word.empty(); word.remove_prefix(1)) {
      if (absl::StrContains(kPlainOptions, word[0])) continue;
      const bool module = word[0] == 'm';
      if (!module && !absl::StrContains(kOptionsWithValue, word[0])) return std::nullopt;
      // The rest of the word, or the next one.
      const std::string rest(word.substr(1));
      if (rest.empty() && ++i == argv.size()) return std::nullopt;
      if (module) return PythonProgram{"", rest.empty() ? argv[i] : rest};
      break;
    }
  }
  return std::nullopt;
}

}  // namespace cadre::agent
