// What a command line that starts Python runs: which script or module, and under which Python and
// PyTorch. That is found out without starting it: the interpreter's package directories are
// searched in the order in which CPython's site module puts them on sys.path.
//
// It cannot find what only a running interpreter knows: code executed by .pth files, as in some
// editable installs, and wrappers around an interpreter. Reads files; any thread.
#ifndef CADRE_AGENT_WORKERS_PYTHON_PYTHON_PROGRAM_H_
#define CADRE_AGENT_WORKERS_PYTHON_PYTHON_PROGRAM_H_

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace cadre::agent {

// The interpreter's arguments before its program.
struct PythonCommand {
  // One of these is empty; both are with -c, for standard input, and without a program.
  std::string script;
  std::string module;
  bool reads_environment = true;  // not with -E, -I
  bool has_user_folder = true;    // not with -s, -I
  bool has_site = true;           // not with -S
};

// Whether a program with this path is an interpreter: python, python3, python3.11.
bool IsPython(absl::string_view path);

// `arguments`: those after the interpreter. nullopt: an option is unknown, or lacks its value.
std::optional<PythonCommand> ParsePythonCommand(const std::vector<std::string>& arguments);

// The script or module of a command line that can be started warm, which requires that the
// interpreter reads its environment and installed packages. nullopt: it cannot.
std::optional<PythonCommand> PythonProgramOf(const std::vector<std::string>& argv);

struct TorchVersion {
  int major = 0;
  int minor = 0;
  friend bool operator<(const TorchVersion& a, const TorchVersion& b) {
    return std::tie(a.major, a.minor) < std::tie(b.major, b.minor);
  }
  friend bool operator==(const TorchVersion& a, const TorchVersion& b) {
    return std::tie(a.major, a.minor) == std::tie(b.major, b.minor);
  }
};

// nullopt: the command is not a Python program, or torch is not installed or cannot be located.
// `variable` returns a variable of the program's environment; empty: unset.
std::optional<TorchVersion> TorchVersionOf(
    const std::vector<std::string>& command, const std::string& working_dir,
    const std::function<std::string(const std::string& name)>& variable);

// The versions of Python and PyTorch, as far as they can be found. nullopt: the command is not a
// Python program.
std::optional<v1::ProgramVersions> ProgramVersionsOf(
    const std::vector<std::string>& command, const std::string& working_dir,
    const std::function<std::string(const std::string& name)>& variable);

// Whether the interpreter of a Python program reads its environment and installed packages, and so
// runs Cadre's start hook: not with -E, -I, -S.
bool RunsStartHook(const std::vector<std::string>& command, const std::string& working_dir,
                   const std::function<std::string(const std::string& name)>& variable);

// Parses for example "2.15.0+cu132" or "2.1.0a0+git123".
std::optional<TorchVersion> ParseTorchVersion(absl::string_view text);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_PYTHON_PROGRAM_H_
