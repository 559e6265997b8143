// What a program is, as its file shows. Reads files.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_PROGRAM_H_
#define CADRE_LAUNCHER_ENVIRONMENT_PROGRAM_H_

#include <string>

namespace cadre::launcher {

// Whether torchrun would run it and nothing else can: a folder with __main__.py, a zip file, a text
// that may not be executed and names no other interpreter. `path`: the file, wherever it was found.
bool IsForPython(const std::string& path);

// Whether it calls MPI_Init, or is a Python script that imports mpi4py.
bool CallsMpi(const std::string& path);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_PROGRAM_H_
