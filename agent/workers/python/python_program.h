// Reads a command line as Python's own: which script or module it runs. Pure.
#ifndef CADRE_AGENT_WORKERS_PYTHON_PYTHON_PROGRAM_H_
#define CADRE_AGENT_WORKERS_PYTHON_PYTHON_PROGRAM_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::agent {

// What an interpreter was told in front of its program.
struct PythonCommand {
  // Of the two one is empty; both are with -c, for standard input, and for no program at all.
  std::string script;
  std::string module;
  bool reads_environment = true;  // not with -E, -I
  bool has_user_folder = true;    // not with -s, -I
  bool has_site = true;           // not with -S
};

// Whether a program of this path is an interpreter: python, python3, python3.11.
bool IsPython(absl::string_view path);

// `arguments`: behind the interpreter. nullopt: an option that is not known, or lacks its value.
std::optional<PythonCommand> ParsePythonCommand(const std::vector<std::string>& arguments);

// Of a command line that can be started warm: the script or module of an interpreter that looks at
// what is installed and set around it. nullopt: it is none.
std::optional<PythonCommand> PythonProgramOf(const std::vector<std::string>& argv);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_PYTHON_PROGRAM_H_
