// Reads a command line as Python's own: which script or module it runs. Pure.
#ifndef CADRE_AGENT_WORKERS_PYTHON_PROGRAM_H_
#define CADRE_AGENT_WORKERS_PYTHON_PROGRAM_H_

#include <optional>
#include <string>
#include <vector>

namespace cadre::agent {

// Of the two one is empty.
struct PythonProgram {
  std::string script;
  std::string module;
};

// nullopt: it is no script or module under an interpreter of this name (python, python3,
// python3.11), or its options keep the interpreter from what is installed or set around it (-E, -I,
// -S).
std::optional<PythonProgram> PythonProgramOf(const std::vector<std::string>& argv);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_PROGRAM_H_
