// Checks that this node has what a job needs, before it joins and not only when its first worker
// starts.
#ifndef CADRE_LAUNCHER_COMMANDS_RUN_CHECKS_H_
#define CADRE_LAUNCHER_COMMANDS_RUN_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "launcher/flags/run_options.h"

namespace cadre::launcher {

// Whether PATH (the job's workers' PATH if `job` is given) has a program of this name.
bool IsOnPath(const std::string& program, const v1::JobSpec* job = nullptr);

// Whether a program in that directory is a Python program although its name does not end in .py. A
// name that is found on PATH is not, because then that program is meant.
bool IsForPythonHere(const std::string& program, const std::string& working_dir);

// Why a submitted job will not find its program if its nodes have the same files as this machine.
// Empty: it will, or that cannot be decided here. `program` is the program as named in the job's
// file, without an interpreter.
std::string WhyProgramMissing(const v1::JobSpec& job, const std::string& program);

// Raises the limit of open files if it is lower than a launcher or an agent needs. Fails, with one
// line, if it cannot be raised, because the process would run out of descriptors later.
absl::Status CheckDescriptors();

// Checks the working directory of a cluster's job, the script, and the log directory, which is
// created and becomes absolute in `options`. INVALID_ARGUMENT. A program that will not be found
// only causes a notice, because the worker that cannot start reports it too; so does a program that
// calls MPI_Init. If the user chose no log directory and the default cannot be written, another one
// is used.
absl::Status CheckNode(RunOptions& options);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_RUN_CHECKS_H_
