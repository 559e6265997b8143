// The interpreter for programs that end in .py.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_PYTHON_H_
#define CADRE_LAUNCHER_ENVIRONMENT_PYTHON_H_

#include <filesystem>
#include <map>
#include <string>

namespace cadre::launcher {

// $PYTHON_EXEC, else the interpreter of the virtual environment in which `program`, this command,
// was installed, as torchrun runs under its own; "" where PATH decides: no such environment, or the
// user has activated one (VIRTUAL_ENV, CONDA_PREFIX), whose interpreter is then the first on PATH.
std::string PythonFor(const std::map<std::string, std::string>& environment,
                      const std::filesystem::path& program);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_PYTHON_H_
