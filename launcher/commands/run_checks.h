// Whether this node has what a job needs: found out before it joins, and not when its first worker
// is to start.
#ifndef CADRE_LAUNCHER_COMMANDS_RUN_CHECKS_H_
#define CADRE_LAUNCHER_COMMANDS_RUN_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "launcher/flags/run_options.h"

namespace cadre::launcher {

// Whether PATH, that of the job's workers where there is a job, has a program of this name.
bool IsOnPath(const std::string& program, const v1::JobSpec* job = nullptr);

// Whether a program, as it is named in that directory, is one for Python though its name does not
// end in .py. Not one that PATH has: that is another program.
bool IsForPythonHere(const std::string& program, const std::string& working_dir);

// Why a job that is submitted will not find its program, if its nodes have the files that this
// machine has; empty: it will, or that is not to be seen here. `program`: as the job's file names
// it, without an interpreter in front.
std::string WhyNotHere(const v1::JobSpec& job, const std::string& program);

// Raises the limit of open files where it is below what a launcher or an agent needs. One line
// where that cannot be: it would end somewhere on its way.
absl::Status CheckDescriptors();

// The working directory of a cluster's job, the script, and the directory of logs, which is made
// and from now on is absolute in `options`. INVALID_ARGUMENT. A program that will not be found gets
// a notice: the worker that cannot start says so too. So does one that calls MPI_Init. Logs that
// nobody has a place for are elsewhere where they cannot be written here.
absl::Status CheckNode(RunOptions& options);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_RUN_CHECKS_H_
