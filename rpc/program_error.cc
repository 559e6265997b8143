#include "rpc/program_error.h"

#include <csignal>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "rpc/python_frame.h"

namespace cadre::rpc {
namespace {

// CPython's status after an exception that nobody caught, and the dynamic linker's.
constexpr int kUncaught = 1;
constexpr int kNoLibrary = 127;
constexpr size_t kMaxTextBytes = 256;

struct Exception {
  absl::string_view type;  // "torch.OutOfMemoryError"
  absl::string_view line;  // with its message
  std::string where;       // "train.py, line 40"; may be empty
  // Nothing but warnings follows: it is what ended the program.
  bool last = true;
};

// PyTorch puts "[rank1]: " before each line of a traceback.
absl::string_view WithoutRank(absl::string_view line) {
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "[rank")) return line;
  const size_t digits = rest.find_first_not_of("0123456789");
  if (digits == 0 || digits == rest.npos) return line;
  rest.remove_prefix(digits);
  if (!absl::ConsumePrefix(&rest, "]:")) return line;
  absl::ConsumePrefix(&rest, " ");
  return rest;
}

// "ValueError" of "ValueError: ..."; empty: no exception's last line begins like this.
absl::string_view TypeOf(absl::string_view line) {
  const absl::string_view type = line.substr(0, line.find(':'));
  if (type.empty() || !absl::ascii_isalpha(type[0])) return "";
  for (const char c : type) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.') return "";
  }
  return type;
}

// Where an exception came from: the innermost of the frames since its traceback began.
class Where {
 public:
  void See(const PythonFrame& frame) {
    if (!IsInstalledPython(frame.file)) own_ = frame;
    innermost_ = frame;
  }
  bool any() const { return innermost_.has_value(); }
  std::string Text() const {
    const std::optional<PythonFrame>& frame = own_.has_value() ? own_ : innermost_;
    if (!frame.has_value()) return "";
    return absl::StrCat(FileName(*frame), ", line ", frame->line);
  }

 private:
  std::optional<PythonFrame> own_;
  std::optional<PythonFrame> innermost_;
};

// The last exception whose traceback is among the lines: it is the one line that follows the
// frames, which are indented, without being so itself.
std::optional<Exception> LastException(absl::string_view lines) {
  std::optional<Exception> found;
  Where where;
  bool in_frames = false;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    line = WithoutRank(line);
    if (absl::StartsWith(line, "  ")) {
      const std::optional<PythonFrame> frame = ParsePythonFrame(line);
      if (frame.has_value()) {
        if (!in_frames) where = Where();
        in_frames = true;
        where.See(*frame);
      }
      continue;
    }
    const absl::string_view type = in_frames ? TypeOf(line) : "";
    in_frames = false;
    if (!type.empty()) {
      found = Exception{type, line, where.Text()};
    } else if (found.has_value() && !line.empty() && !absl::StartsWith(line, "[W")) {
      found->last = false;
    }
  }
  return found;
}

bool IsOutOfMemory(const Exception& exception) {
  return exception.type == "MemoryError" || absl::EndsWith(exception.type, "OutOfMemoryError") ||
         absl::EndsWith(exception.type, "ArrayMemoryError") ||
         absl::StrContains(exception.line, "can't allocate memory") ||
         absl::StrContains(exception.line, "CUDA out of memory");
}

bool CannotLoad(const Exception& exception) {
  for (const char* type :
       {"SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError", "ImportError"}) {
    // One that a program logged and went on after is not why it ended.
    if (exception.type == type) return exception.last;
  }
  return false;
}

// The line with these words.
std::optional<ProgramError> Said(absl::string_view lines, absl::string_view words,
                                 ProgramError::Kind kind) {
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    if (absl::StrContains(line, words)) return ProgramError{kind, OneLine(line, kMaxTextBytes)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<ProgramError> FindProgramError(const v1::WorkerExit& exit) {
  const absl::string_view lines = exit.last_lines();
  if (exit.exec_errno() != 0) return std::nullopt;
  if (exit.signal() == SIGABRT) {
    return Said(lines, "std::bad_alloc", ProgramError::Kind::kOutOfMemory);
  }
  if (exit.signal() != 0) return std::nullopt;
  if (exit.exit_code() == kNoLibrary) {
    return Said(lines, "error while loading shared libraries", ProgramError::Kind::kCannotLoad);
  }
  if (exit.exit_code() != kUncaught) return std::nullopt;
  const std::optional<Exception> exception = LastException(lines);
  if (!exception.has_value()) return std::nullopt;
  ProgramError error;
  if (IsOutOfMemory(*exception)) error.kind = ProgramError::Kind::kOutOfMemory;
  if (CannotLoad(*exception)) error.kind = ProgramError::Kind::kCannotLoad;
  error.text = OneLine(exception->line, kMaxTextBytes);
  if (!exception->where.empty()) {
    absl::StrAppend(&error.text, " (", OneLine(exception->where, kMaxTextBytes), ")");
  }
  return error;
}

}  // namespace cadre::rpc
