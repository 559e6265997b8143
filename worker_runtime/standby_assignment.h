// How Worker::Connect() gets the environment of a standby process, which waits for its assignment
// (rank, generation, ...; agent/supervisor/start.h). Blocks; may be called on any thread.
#ifndef CADRE_WORKER_RUNTIME_STANDBY_ASSIGNMENT_H_
#define CADRE_WORKER_RUNTIME_STANDBY_ASSIGNMENT_H_

#include <map>
#include <string>

#include "cadre/result.h"
#include "worker_runtime/environment/worker_environment.h"

namespace cadre {

using Assignment = std::map<std::string, std::string>;  // by variable name

// Whether CADRE_STANDS_BY is set.
bool StandsBy(const environment::GetVariable& get);

// Waits, without a limit, until a worker is lost and this process is to replace it: the process
// ends with the supervisor, which holds the other end of the socket. INVALID_ARGUMENT:
// CADRE_STANDS_BY names no socket. UNAVAILABLE: the other end is closed, or the assignment was read
// before.
Result<Assignment> AwaitAssignment(const environment::GetVariable& get);

// Returns the variables of `assignment`, and those of `get` for all other names. Refers to
// `assignment`.
environment::GetVariable WithAssignment(const Assignment& assignment, environment::GetVariable get);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_STANDBY_ASSIGNMENT_H_
