// What a Python program is doing, told from the stack that faulthandler prints of it. After torch's
// own names: a rank that waits in a collective is a victim, one that is elsewhere may be the cause.
// Pure.
#ifndef CADRE_AGENT_EVIDENCE_PYTHON_STACK_H_
#define CADRE_AGENT_EVIDENCE_PYTHON_STACK_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"
#include "rpc/python_frame.h"

namespace cadre::agent {

using rpc::PythonFrame;

// Frames of the main thread in the last dump of `text`, innermost first. Empty: there is none.
std::vector<PythonFrame> MainThreadOf(absl::string_view text);

// The text of a line of a source file; empty where it cannot be read.
using SourceReader = std::function<std::string(const std::string& file, int line)>;

struct PythonPlace {
  v1::PythonActivity activity = v1::PYTHON_ACTIVITY_UNSPECIFIED;
  // The call that it waits in, "all_reduce"; where it waits in none the text of the user's own
  // line, "time.sleep(100)".
  std::string what;
  // The innermost line of the user's own: "train.py:40 in main". Empty: no frame is the user's.
  std::string where;
};

PythonPlace PlaceOf(const std::vector<PythonFrame>& frames, const SourceReader& source);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_PYTHON_STACK_H_
