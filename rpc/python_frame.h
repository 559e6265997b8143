// Frames of Python stacks as CPython prints them, in tracebacks and by faulthandler. Pure.
#ifndef CADRE_RPC_PYTHON_FRAME_H_
#define CADRE_RPC_PYTHON_FRAME_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre::rpc {

struct PythonFrame {
  std::string file;
  int line = 0;
  std::string function;  // empty where the line names none, as of a SyntaxError
};

// Of '  File "/home/me/train.py", line 40, in main' (a traceback's) or '... line 40 in main'
// (faulthandler's). nullopt: the line is no frame.
std::optional<PythonFrame> ParsePythonFrame(absl::string_view line);

// Whether the file is an installed package's, the interpreter's own or Cadre's, rather than the
// user's.
bool IsInstalledPython(absl::string_view file);

// Which frames of a stack are the user's own, told by its frames from the outermost on. The program
// may be an installed package itself, started by `python -m package.train` or by a script that pip
// made for it: then that package's files are the user's too.
class OwnPython {
 public:
  void See(const PythonFrame& frame);
  bool Has(absl::string_view file) const;
  // The program is such a package. Stacks of its other threads and processes do not show it.
  bool is_package() const { return !package_.empty(); }

 private:
  enum class Outer { kNothing, kRunpy, kScript, kOther };
  Outer outer_ = Outer::kNothing;
  std::string packages_;  // where those of the script are
  std::string package_;   // with the slash at its end
};

// "train.py".
absl::string_view FileName(const PythonFrame& frame);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_PYTHON_FRAME_H_
