// Which Python and PyTorch a program would run under, found without starting it: the interpreter's
// folders of packages are looked at in the order in which CPython's site module puts them on
// sys.path.
//
// What only a running interpreter knows is not found: what .pth files have it execute, as of some
// editable installs, and wrappers around an interpreter.
// Reads files; any thread.
#ifndef CADRE_AGENT_WORKERS_PYTHON_PROGRAM_VERSIONS_H_
#define CADRE_AGENT_WORKERS_PYTHON_PROGRAM_VERSIONS_H_

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace cadre::agent {

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

// nullopt: the command is no Python program, or there is no torch, or where it is cannot be told.
// `variable` gives what the program's environment holds; empty: nothing.
std::optional<TorchVersion> TorchVersionOf(
    const std::vector<std::string>& command, const std::string& working_dir,
    const std::function<std::string(const std::string& name)>& variable);

// Likewise the versions of Python and PyTorch, as far as they can be told. nullopt: the command is
// no Python program.
std::optional<v1::ProgramVersions> ProgramVersionsOf(
    const std::vector<std::string>& command, const std::string& working_dir,
    const std::function<std::string(const std::string& name)>& variable);

// Whether the interpreter of a Python program looks at what is set and installed around it, and so
// runs Cadre's start hook: not with -E, -I, -S.
bool RunsStartHook(const std::vector<std::string>& command, const std::string& working_dir,
                   const std::function<std::string(const std::string& name)>& variable);

// "2.15.0+cu132", "2.1.0a0+git123".
std::optional<TorchVersion> ParseTorchVersion(absl::string_view text);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_PROGRAM_VERSIONS_H_
