// What a program is, found out from its file, and the Python interpreter that runs it. Reads files.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_PROGRAM_H_
#define CADRE_LAUNCHER_ENVIRONMENT_PROGRAM_H_

#include <filesystem>
#include <map>
#include <string>

namespace cadre::launcher {

// Whether torchrun can run it and exec cannot: a folder with __main__.py, a zip file, or a text
// file that is not executable and names no other interpreter. `path`: the file, wherever it was
// found.
bool IsForPython(const std::string& path);

// Whether the program calls MPI_Init, or is a Python script that imports mpi4py.
bool CallsMpi(const std::string& path);

// The interpreter for programs that end in .py: $PYTHON_EXEC, otherwise the interpreter of the
// active virtual environment (VIRTUAL_ENV), otherwise that of the environment in which `program`,
// this command, is installed, as torchrun uses its own; "" if PATH decides: there is none of them,
// or a conda environment is active, which is first on PATH.
std::string PythonFor(const std::map<std::string, std::string>& environment,
                      const std::filesystem::path& program);

// The path of this command's executable.
std::filesystem::path ThisProgram();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_PROGRAM_H_
