
#include "agent/workers/python/python_program.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;
using Variable = std::function<std::string(const std::string&)>;

// At most this much of a file is read: what is searched for is near its beginning.
constexpr size_t kMaxFileBytes = 16 << 10;
constexpr size_t kMaxVersionBytes = 64;

std::string Beginning(const fs::path& path) {
  std::string text(kMaxFileBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<fs::path> Entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  return entries;
}

// Searches PATH like a shell; empty: not found.
fs::path FindProgram(const std::string& name, const std::string& working_dir,
                     const Variable& variable) {
  if (name.find('/') != std::string::npos) {
    const fs::path path = fs::path(working_dir) / name;
    return Exists(path) ? path : fs::path();
  }
  for (const absl::string_view folder : absl::StrSplit(variable("PATH"), ':')) {
    const fs::path path = fs::path(working_dir) / std::string(folder) / name;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

struct Interpreter {
  fs::path program;
  PythonCommand command;
};

// The words of a line such as "#!/usr/bin/env python3".
std::vector<std::string> InterpreterLine(const fs::path& script) {
  const std::string text = Beginning(script);
  if (!absl::StartsWith(text, "#!")) return {};
  const std::string line = text.substr(2, text.find('\n') - 2);
  return absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
}

std::optional<Interpreter> InterpreterOf(const std::vector<std::string>& command,
                                         const std::string& working_dir, const Variable& variable) {
  if (command.empty()) return std::nullopt;
  Interpreter interpreter;
  interpreter.program = FindProgram(command[0], working_dir, variable);
  std::vector<std::string> arguments(command.begin() + 1, command.end());
  if (interpreter.program.empty()) return std::nullopt;
  if (!IsPython(interpreter.program.string())) {
    std::vector<std::string> words = InterpreterLine(interpreter.program);
    if (!words.empty() && fs::path(words[0]).filename() == "env") {
      words.erase(words.begin());
      if (!words.empty() && words[0] == "-S") words.erase(words.begin());
    }
    if (words.empty()) return std::nullopt;
    interpreter.program = FindProgram(words[0], working_dir, variable);
    if (interpreter.program.empty() || !IsPython(interpreter.program.string())) return std::nullopt;
    arguments.assign(words.begin() + 1, words.end());
  }
  // If the interpreter would reject the arguments, no packages can be determined.
  std::optional<PythonCommand> parsed = ParsePythonCommand(arguments);
  if (!parsed.has_value()) return std::nullopt;
  interpreter.command = *std::move(parsed);
  return interpreter;
}

// "3.11" for "python3.11"; empty: the name has no version.
std::string VersionIn(const fs::path& program) {
  const std::string name = program.filename();
  const std::string version(absl::StripPrefix(name, "python"));
  return version.find('.') == std::string::npos ? "" : version;
}

struct PackageFolder {
  fs::path path;
  // A directory of the site module, which reads the .pth files in it.
  bool reads_paths = false;
};

// Adds the package directories below a prefix. Without a version, those of all versions found.
void AddFolders(const fs::path& prefix, const std::string& version,
                std::vector<PackageFolder>& folders) {
  for (const char* lib : {"lib", "lib64"}) {
    std::vector<fs::path> versions;
    for (const fs::path& entry : Entries(prefix / lib)) {
      const std::string name = entry.filename();
      if (version.empty() ? absl::StartsWith(name, "python3.") : name == "python" + version) {
        versions.push_back(entry);
      }
    }
    std::sort(versions.begin(), versions.end());
    // Debian's.
    versions.push_back(prefix / lib / "python3");
    for (const fs::path& folder : versions) {
      folders.push_back({folder / "site-packages", true});
      folders.push_back({folder / "dist-packages", true});
    }
  }
}

// The value after "NAME =" in a virtual environment's pyvenv.cfg.
std::string ValueIn(const std::string& file, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(file, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (absl::AsciiStrToLower(absl::StripAsciiWhitespace(parts.first)) == name) {
      return std::string(absl::StripAsciiWhitespace(parts.second));
    }
  }
  return "";
}

void AddUserFolder(const Interpreter& interpreter, const std::string& version,
                   const Variable& variable, std::vector<PackageFolder>& folders) {
  const bool reads = interpreter.command.reads_environment;
  if (!interpreter.command.has_user_folder || (reads && !variable("PYTHONNOUSERSITE").empty()))
    return;
  const std::string base = reads ? variable("PYTHONUSERBASE") : "";
  const std::string home = variable("HOME");
  if (!base.empty()) {
    AddFolders(base, version, folders);
  } else if (!home.empty()) {
    AddFolders(fs::path(home) / ".local", version, folders);
  }
}

// In the order of sys.path.
std::vector<PackageFolder> PackageFolders(const Interpreter& interpreter,
                                          const std::string& working_dir,
                                          const Variable& variable) {
  std::vector<PackageFolder> folders;
  if (interpreter.command.reads_environment) {
    if (!variable("PYTHONHOME").empty()) return {};
    for (const absl::string_view folder :
         absl::StrSplit(variable("PYTHONPATH"), ':', absl::SkipEmpty())) {
      folders.push_back({fs::path(working_dir) / std::string(folder), false});
    }
  }
  if (!interpreter.command.has_site) return folders;
  std::error_code error;
  fs::path program = fs::canonical(interpreter.program, error);
  if (error) return {};
  // A virtual environment is identified by a file beside the link by which its interpreter is
  // called.
  const fs::path called = interpreter.program.parent_path();
  for (const fs::path& place : {called, called.parent_path()}) {
    if (!Exists(place / "pyvenv.cfg")) continue;
    AddFolders(place, VersionIn(program), folders);
    const std::string settings = Beginning(place / "pyvenv.cfg");
    if (ValueIn(settings, "include-system-site-packages") != "true") return folders;
    const std::string home = ValueIn(settings, "home");
    if (!home.empty()) program = fs::path(home) / program.filename();
    break;
  }
  const fs::path prefix = program.parent_path().parent_path();
  AddUserFolder(interpreter, VersionIn(program), variable, folders);
  // Debian's, and Fedora's.
  AddFolders(prefix / "local", VersionIn(program), folders);
  AddFolders(prefix, VersionIn(program), folders);
  return folders;
}

// The version that torch/version.py contains; empty: none.
std::string VersionAt(const fs::path& folder) {
  const std::string text = Beginning(folder / "torch" / "version.py");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "__version__")) continue;
    const size_t begin = line.find_first_of("'\"");
    if (begin != line.npos) {
      line.remove_prefix(begin + 1);
      return std::string(line.substr(0, line.find_first_of("'\"")));
    }
  }
  for (const fs::path& entry : Entries(folder)) {
    const std::string name = entry.filename();
    absl::string_view version = name;
    if (absl::ConsumePrefix(&version, "torch-") && absl::EndsWith(version, ".dist-info")) {
      return std::string(absl::StripSuffix(version, ".dist-info"));
    }
  }
  return "";
}

// The directories that .pth files in a package directory add, as CPython's site module reads them:
// a path on each line, except for comments and lines to execute.
std::vector<fs::path> FoldersNamedIn(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::path& entry : Entries(folder)) {
    if (entry.extension() == ".pth") files.push_back(entry);
  }
  std::sort(files.begin(), files.end());
  std::vector<fs::path> named;
  for (const fs::path& file : files) {
    const std::string text = Beginning(file);
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      line = absl::StripTrailingAsciiWhitespace(line);
      const bool executed = absl::StartsWith(line, "import ") || absl::StartsWith(line, "import\t");
      if (!line.empty() && line[0] != '#' && !executed) named.push_back(folder / std::string(line));
    }
  }
  return named;
}

// Returns nullopt if there is none.
std::optional<std::string> TorchOf(const Interpreter& interpreter, const std::string& working_dir,
                                   const Variable& variable) {
  // The first one found is what the program imports, even if its version is unknown.
  for (const PackageFolder& folder : PackageFolders(interpreter, working_dir, variable)) {
    if (Exists(folder.path / "torch")) return VersionAt(folder.path);
    if (!folder.reads_paths) continue;
    for (const fs::path& named : FoldersNamedIn(folder.path)) {
      if (Exists(named / "torch")) return VersionAt(named);
    }
  }
  return std::nullopt;
}

// For example "3.11"; empty: unknown.
std::string PythonOf(const Interpreter& interpreter) {
  std::error_code error;
  const fs::path program = fs::canonical(interpreter.program, error);
  const std::string version = error ? "" : VersionIn(program);
  if (!version.empty()) return version;
  // The interpreter may have been copied into its virtual environment.
  const fs::path folder = interpreter.program.parent_path().parent_path();
  const std::vector<std::string> parts =
      absl::StrSplit(ValueIn(Beginning(folder / "pyvenv.cfg"), "version"), '.');
  return parts.size() < 2 ? "" : absl::StrCat(parts[0], ".", parts[1]);
}

}  // namespace

std::optional<TorchVersion> ParseTorchVersion(absl::string_view text) {
  const auto number = [&text](int* value) {
    const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
    const bool is_one = absl::SimpleAtoi(text.substr(0, end), value);
    text.remove_prefix(end);
    return is_one;
  };
  TorchVersion version;
  if (number(&version.major) && absl::ConsumePrefix(&text, ".") && number(&version.minor)) {
    return version;
  }
  return std::nullopt;
}

std::optional<TorchVersion> TorchVersionOf(const std::vector<std::string>& command,
                                           const std::string& working_dir,
                                           const Variable& variable) {
  const std::optional<Interpreter> interpreter = InterpreterOf(command, working_dir, variable);
  if (!interpreter.has_value()) return std::nullopt;
  return ParseTorchVersion(TorchOf(*interpreter, working_dir, variable).value_or(""));
}

bool RunsStartHook(const std::vector<std::string>& command, const std::string& working_dir,
                   const Variable& variable) {
  const std::optional<Interpreter> interpreter = InterpreterOf(command, working_dir, variable);
  return interpreter.has_value() && interpreter->command.reads_environment &&
         interpreter->command.has_site;
}

std::optional<v1::ProgramVersions> ProgramVersionsOf(const std::vector<std::string>& command,
                                                     const std::string& working_dir,
                                                     const Variable& variable) {
  const std::optional<Interpreter> interpreter = InterpreterOf(command, working_dir, variable);
  if (!interpreter.has_value()) return std::nullopt;
  v1::ProgramVersions versions;
  versions.set_python(OneLine(PythonOf(*interpreter), kMaxVersionBytes));
  versions.set_torch(
      OneLine(TorchOf(*interpreter, working_dir, variable).value_or(""), kMaxVersionBytes));
  return versions;
}

namespace {

// Options without a value. -c ends the options, as the program does.
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
      // The value is the rest of the word, or the next word.
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
