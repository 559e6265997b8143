// The exception that ended a Python program, as CPython printed it among the last lines of its
// standard error. Pure.
#ifndef CADRE_RPC_PYTHON_EXCEPTION_H_
#define CADRE_RPC_PYTHON_EXCEPTION_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::rpc {

// Its views are into the lines that it was found in.
struct PythonException {
  struct Cause {
    absl::string_view line;
    std::string where;
  };

  absl::string_view type;  // "torch.OutOfMemoryError"
  absl::string_view line;  // with its message
  // "train.py, line 40": the innermost line that is the user's own, not an installed package's
  // (but one that is the program itself).
  // Empty: no frame was seen.
  std::string where;
  // "DataLoader worker process 0", where PyTorch raises the exception of another process or thread
  // again. Empty: it does not.
  absl::string_view raised_in;
  // Those that led to it ("The above exception was the direct cause of ..."), first one first.
  std::vector<Cause> causes;
  // It is surely what ended the program: nothing but PyTorch's warnings, or
  // the abort that its threads cause, follows, or PyTorch marked it as
  // uncaught. Otherwise the program may have logged it and gone on.
  bool last = true;
};

// The last one whose traceback is among the lines. nullopt: there is none.
std::optional<PythonException> LastPythonException(absl::string_view lines);

// `lines` in at most so many bytes. Where tracebacks among them are longer (many calls, a message
// of many lines), what LastPythonException() goes by stays, and in the place of the rest it says
// "[9 lines left out]"; lines themselves are cut too.
std::string ShortenedLines(absl::string_view lines, size_t limit);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_PYTHON_EXCEPTION_H_
