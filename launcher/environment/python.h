// The interpreter for programs that end in .py.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_PYTHON_H_
#define CADRE_LAUNCHER_ENVIRONMENT_PYTHON_H_

#include <filesystem>
#include <map>
#include <string>

namespace cadre::launcher {

// $PYTHON_EXEC, else the interpreter of the virtual environment that is active (VIRTUAL_ENV), else
// that of the one in which `program`, this command, was installed, as torchrun runs under its own;
// "" where PATH decides: there is none of them, or one of conda's is active, which is first on
// PATH.
std::string PythonFor(const std::map<std::string, std::string>& environment,
                      const std::filesystem::path& program);

// The file of this command.
std::filesystem::path ThisProgram();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_PYTHON_H_
