#include "agent/workers/python/program_versions.h"

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
#include "absl/strings/strip.h"
#include "agent/workers/python/python_program.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;
using Variable = std::function<std::string(const std::string&)>;

// More than this is not read of a file: each of them says what is looked for near its beginning.
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

// As a shell finds it; empty: it is not there.
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

// Of "#!/usr/bin/env python3" and the like, the words.
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
  // What the interpreter itself will not take tells of no packages.
  std::optional<PythonCommand> parsed = ParsePythonCommand(arguments);
  if (!parsed.has_value()) return std::nullopt;
  interpreter.command = *std::move(parsed);
  return interpreter;
}

// "3.11" of "python3.11"; empty: the name does not say.
std::string VersionIn(const fs::path& program) {
  const std::string name = program.filename();
  const std::string version(absl::StripPrefix(name, "python"));
  return version.find('.') == std::string::npos ? "" : version;
}

struct PackageFolder {
  fs::path path;
  // One of the site module's, which reads the .pth files in it.
  bool reads_paths = false;
};

// Folders of packages below a prefix. Without a version those of all versions that are there.
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

// What a virtual environment's file says after "NAME =".
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

// In the order in which they are on sys.path.
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
  // A virtual environment is known by a file beside the link by which its interpreter is called.
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

// As it calls itself; empty: it does not say.
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

// What .pth files of a folder of packages put behind it, as CPython's site module reads them: a
// path on each line, but for comments and what the interpreter is to execute.
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

// nullopt: there is none.
std::optional<std::string> TorchOf(const Interpreter& interpreter, const std::string& working_dir,
                                   const Variable& variable) {
  // The first one is what the program gets, whatever can be told of it.
  for (const PackageFolder& folder : PackageFolders(interpreter, working_dir, variable)) {
    if (Exists(folder.path / "torch")) return VersionAt(folder.path);
    if (!folder.reads_paths) continue;
    for (const fs::path& named : FoldersNamedIn(folder.path)) {
      if (Exists(named / "torch")) return VersionAt(named);
    }
  }
  return std::nullopt;
}

// "3.11"; empty: it cannot be told.
std::string PythonOf(const Interpreter& interpreter) {
  std::error_code error;
  const fs::path program = fs::canonical(interpreter.program, error);
  const std::string version = error ? "" : VersionIn(program);
  if (!version.empty()) return version;
  // One that was copied into its virtual environment.
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

}  // namespace cadre::agent
