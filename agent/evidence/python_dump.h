// Asks Python processes what they are doing. Cadre's start hook (docs/design.md, "Evidence") has
// faulthandler print all threads' stacks into the worker's stack file whenever this signal comes:
// that takes a millisecond, stops nothing, needs no rights to trace, and works in a process that
// holds the interpreter's lock in C code. Stateless; any thread.
#ifndef CADRE_AGENT_EVIDENCE_PYTHON_DUMP_H_
#define CADRE_AGENT_EVIDENCE_PYTHON_DUMP_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/time.h"

namespace cadre::agent {

// A real-time signal near the upper end, which programs hardly use; the hook has the same number.
inline constexpr int kStackSignal = 61;

// What the process added to `stack_file`. No signal goes to a process without a handler for it,
// which it would kill. Errors say in words that follow "no Python stack: ":
//   UNIMPLEMENTED        it has no handler, or no file
//   FAILED_PRECONDITION  it is stopped
//   DEADLINE_EXCEEDED    it did not answer before `deadline`
//   NOT_FOUND            it has ended
absl::StatusOr<std::string> PythonStackOf(pid_t process, const std::string& stack_file,
                                          MonoTime deadline);

// What the interpreter wrote there as the last thing, because a fatal signal ended it. Empty: none
// did.
std::string FatalStackIn(const std::string& stack_file);

// The stack at which the process called sys.exit() with this status, as the hook notes it. Empty:
// it did not.
std::string ExitStackIn(const std::string& stack_file, pid_t process, int status);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_PYTHON_DUMP_H_
