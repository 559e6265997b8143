// Reads from the stacks that its interpreter writes what a Python program is doing.
//
// Cadre's start hook (docs/design.md, "Evidence") makes faulthandler dump all threads' stacks to
// the worker's stack file on a signal: that takes a millisecond, stops nothing, needs no ptrace
// rights, and works in a process that holds the GIL in C code. From the main thread's frames
// PlaceOf() derives, by torch's function names, whether the rank waits in a collective, and is then
// a victim, or is elsewhere and may be the cause. Stateless; any thread.
#ifndef CADRE_AGENT_EVIDENCE_PYTHON_STACK_H_
#define CADRE_AGENT_EVIDENCE_PYTHON_STACK_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "rpc/python_traceback.h"

namespace cadre::agent {

// --- asking a process for its stack ---

// A real-time signal near the upper end, which few programs use; the hook uses the same number.
inline constexpr int kStackSignal = 61;

// Returns what the process added to `stack_file`. Processes without a handler are not signalled,
// since the signal would kill them. Error messages are worded to follow "no Python stack: ":
//   UNIMPLEMENTED        it has no handler, or no file
//   FAILED_PRECONDITION  it is stopped
//   DEADLINE_EXCEEDED    it did not answer before `deadline`
//   NOT_FOUND            it has ended
absl::StatusOr<std::string> PythonStackOf(pid_t process, const std::string& stack_file,
                                          MonoTime deadline);

// The last stack that an interpreter wrote there because a fatal signal ended it. Empty: none did.
std::string FatalStackIn(const std::string& stack_file);

// The stack at which the process called sys.exit() with this status, as recorded by the hook.
// Empty: it did not.
std::string ExitStackIn(const std::string& stack_file, pid_t process, int status);

// --- what a stack means; pure but for `source` ---

using rpc::PythonFrame;

// Frames of the main thread in the last dump in `text`, innermost first. Empty: there is none.
std::vector<PythonFrame> MainThreadOf(absl::string_view text);

// Returns the text of a line of a source file; empty if it cannot be read.
using SourceReader = std::function<std::string(const std::string& file, int line)>;

struct PythonPlace {
  v1::PythonActivity activity = v1::PYTHON_ACTIVITY_UNSPECIFIED;
  // The collective or other blocking call that was recognised, for example "all_reduce". If none
  // was, the text of the user's own line, for example "time.sleep(100)".
  std::string what;
  // The innermost line of the user's code: "train.py:40 in main". Empty: no frame is the user's.
  std::string where;
};

PythonPlace PlaceOf(const std::vector<PythonFrame>& frames, const SourceReader& source);

// --- lines of the program's files ---

// Limits of what is read of a file to find a line, and of what is kept of the line.
inline constexpr size_t kMaxSourceBytes = 4 << 20;
inline constexpr size_t kMaxSourceLineBytes = 200;

// The text of a line as a process of the program would read it: a relative path is resolved in its
// working directory. Returns one line of UTF-8 without surrounding blanks. Empty: the file is not
// regular, may not be read, or has no such line in its first kMaxSourceBytes.
std::string SourceLine(pid_t process, const std::string& path, int number);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_PYTHON_STACK_H_
