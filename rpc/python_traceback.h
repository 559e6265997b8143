// Parses what CPython prints: the frames of stacks, in tracebacks and by faulthandler, and the
// exception that ended a program, among the last lines of its standard error. Pure.
#ifndef CADRE_RPC_PYTHON_TRACEBACK_H_
#define CADRE_RPC_PYTHON_TRACEBACK_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::rpc {

struct PythonFrame {
  std::string file;
  int line = 0;
  std::string function;  // empty where the line names none, as of a SyntaxError
};

// Parses '  File "/home/me/train.py", line 40, in main' (of a traceback) or '... line 40 in main'
// (of faulthandler). nullopt: the line is no frame.
std::optional<PythonFrame> ParsePythonFrame(absl::string_view line);

// Whether the file belongs to an installed package, the interpreter or Cadre, and not to the user.
bool IsInstalledPython(absl::string_view file);

// Decides which frames of a stack are the user's own. It must see all frames, from the outermost
// on. The program may be an installed package itself, started by `python -m package.train` or by a
// script that pip made: then the files of that package count as the user's too.
class UserFrames {
 public:
  void Add(const PythonFrame& frame);
  bool Has(absl::string_view file) const;
  // The program is an installed package. Stacks of its other threads and processes do not show
  // that.
  bool is_package() const { return !package_.empty(); }

 private:
  enum class Outer { kNothing, kRunpy, kScript, kOther };
  Outer outer_ = Outer::kNothing;
  std::string packages_;  // path prefix of those beside the script
  std::string package_;   // with a trailing slash
};

// The last component of the path: "train.py".
absl::string_view FileName(const PythonFrame& frame);

// The exception that ended a program. The views point into the text that LastPythonException was
// given.
struct PythonException {
  struct Cause {
    absl::string_view line;
    std::string where;
  };

  absl::string_view type;  // "torch.OutOfMemoryError"
  absl::string_view line;  // with its message
  // "train.py, line 40": the innermost line in the user's own code, not in an installed package
  // (unless the package is the program itself). Empty: no frame was found.
  std::string where;
  // "DataLoader worker process 0" if PyTorch raised an exception of another process or thread
  // again; otherwise empty.
  absl::string_view raised_in;
  // The exceptions that led to it ("The above exception was the direct cause of ..."), first one
  // first.
  std::vector<Cause> causes;
  // The exception certainly ended the program: only PyTorch's warnings or the abort that its
  // threads cause follow, or PyTorch marked it as uncaught. Otherwise the program may have logged
  // it and continued.
  bool last = true;
};

// Finds the last exception whose traceback is among the lines. nullopt: there is none.
std::optional<PythonException> LastPythonException(absl::string_view lines);

// Shortens `lines` to `limit` bytes. If tracebacks are longer (many calls, a message of many
// lines), the lines that LastPythonException() needs are kept and others replaced by "[9 lines left
// out]"; long lines are cut too.
std::string ShortenedLines(absl::string_view lines, size_t limit);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_PYTHON_TRACEBACK_H_
