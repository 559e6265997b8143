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

// Whether the file is an installed package's or the interpreter's own, rather than the user's.
bool IsInstalledPython(absl::string_view file);

// "train.py".
absl::string_view FileName(const PythonFrame& frame);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_PYTHON_FRAME_H_
