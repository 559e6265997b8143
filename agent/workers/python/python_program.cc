#include "agent/workers/python/python_program.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace cadre::agent {
namespace {

// Options without a value; -c ends them, as the program does.
constexpr absl::string_view kPlainOptions = "bBdEiIOPqRsSuvx";
constexpr absl::string_view kOptionsWithValue = "WX";

void Note(char option, PythonCommand& command) {
  if (option == 'E' || option == 'I') command.reads_environment = false;
  if (option == 's' || option == 'I') command.has_user_folder = false;
  if (option == 'S') command.has_site = false;
}

}  // namespace

bool IsPython(absl::string_view path) {
  absl::string_view name = path.substr(path.rfind('/') + 1);
  if (!absl::ConsumePrefix(&name, "python")) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
}

std::optional<PythonCommand> ParsePythonCommand(const std::vector<std::string>& arguments) {
  PythonCommand command;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view word = arguments[i];
    if (word == "-") return command;  // standard input
    if (word == "--check-hash-based-pycs") {
      ++i;
      continue;
    }
    if (absl::StartsWith(word, "--")) return std::nullopt;
    if (!absl::ConsumePrefix(&word, "-")) {
      command.script = arguments[i];
      return command;
    }
    for (; !word.empty(); word.remove_prefix(1)) {
      if (word[0] == 'c') return command;
      Note(word[0], command);
      if (absl::StrContains(kPlainOptions, word[0])) continue;
      const bool module = word[0] == 'm';
      if (!module && !absl::StrContains(kOptionsWithValue, word[0])) return std::nullopt;
      // The rest of the word, or the next one.
      const std::string rest(word.substr(1));
      if (rest.empty() && ++i == arguments.size()) return std::nullopt;
      if (!module) break;
      command.module = rest.empty() ? arguments[i] : rest;
      return command;
    }
  }
  return command;
}

std::optional<PythonCommand> PythonProgramOf(const std::vector<std::string>& argv) {
  if (argv.empty() || !IsPython(argv[0])) return std::nullopt;
  std::optional<PythonCommand> command = ParsePythonCommand({argv.begin() + 1, argv.end()});
  if (!command.has_value() || (command->script.empty() && command->module.empty())) {
    return std::nullopt;
  }
  if (!command->reads_environment || !command->has_site) return std::nullopt;
  return command;
}

}  // namespace cadre::agent
