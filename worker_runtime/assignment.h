// A process that was started to stand by waits for its assignment (rank, generation, ...), which
// its environment lacks (agent/supervisor/standby.h). Blocks; any thread.
#ifndef CADRE_WORKER_RUNTIME_ASSIGNMENT_H_
#define CADRE_WORKER_RUNTIME_ASSIGNMENT_H_

#include <map>
#include <string>

#include "cadre/result.h"
#include "worker_runtime/environment/worker_environment.h"

namespace cadre {

using Assignment = std::map<std::string, std::string>;  // by variable

// Whether CADRE_STANDS_BY is set.
bool StandsBy(const environment::GetVariable& get);

// Waits until a worker is lost and this process is to take its place: for as long as that takes,
// since the process ends with the supervisor at the other end. INVALID_ARGUMENT: CADRE_STANDS_BY
// names no socket. UNAVAILABLE: the other end is closed, or the assignment was read before.
Result<Assignment> AwaitAssignment(const environment::GetVariable& get);

// `assignment`, and what `get` says of all else. Refers to `assignment`.
environment::GetVariable WithAssignment(const Assignment& assignment, environment::GetVariable get);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_ASSIGNMENT_H_
