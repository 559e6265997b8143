#include "rpc/python_exception.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "rpc/python_frame.h"

namespace cadre::rpc {
namespace {

// PyTorch puts "[rank1]: " before each line of the traceback of an exception that nobody caught.
bool ConsumeRank(absl::string_view* line) {
  absl::string_view rest = *line;
  if (!absl::ConsumePrefix(&rest, "[rank")) return false;
  const size_t digits = rest.find_first_not_of("0123456789");
  if (digits == 0 || digits == rest.npos) return false;
  rest.remove_prefix(digits);
  if (!absl::ConsumePrefix(&rest, "]:")) return false;
  // "[rank1]:[W..." is a warning of PyTorch's own log.
  if (!rest.empty() && !absl::ConsumePrefix(&rest, " ")) return false;
  *line = rest;
  return true;
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

// "DataLoader worker process 0" of "ValueError: Caught ValueError in DataLoader worker process 0.".
absl::string_view RaisedIn(const PythonException& exception) {
  absl::string_view message = exception.line.substr(exception.type.size());
  if (!absl::ConsumePrefix(&message, ": Caught ")) return "";
  const size_t in = message.find(" in ");
  return in == message.npos ? "" : absl::StripSuffix(message.substr(in + 4), ".");
}

// What may follow the end of a program: PyTorch's warnings, and the abort of an interpreter that
// ends while threads of PyTorch's still run.
bool IsAfterTheEnd(absl::string_view line) {
  if (line == "terminate called without an active exception") return true;
  absl::string_view rest = line;
  if (absl::ConsumePrefix(&rest, "[rank")) rest = rest.substr(rest.find(']') + 1);
  absl::ConsumePrefix(&rest, ":");
  return absl::StartsWith(rest, "[W");
}

// torchrun's own end says of the programs that it had started no more than their statuses.
bool IsTorchruns(absl::string_view type) { return absl::EndsWith(type, ".ChildFailedError"); }

// A data loader's process that dies while it hands over a batch is known by this alone.
bool SaysConnectionEnded(absl::string_view type) {
  return type == "ConnectionResetError" || type == "ConnectionRefusedError" ||
         type == "BrokenPipeError" || type == "EOFError";
}

// Where an exception came from: the innermost of the frames since its traceback began.
class Where {
 public:
  void See(const PythonFrame& frame) {
    if (!IsInstalledPython(frame.file)) own_ = frame;
    in_data_loader_ |= absl::EndsWith(frame.file, "torch/utils/data/dataloader.py");
    innermost_ = frame;
  }
  // One that names no line of the user's may be the consequence of one that does.
  bool has_own() const { return own_.has_value(); }
  bool in_data_loader() const { return in_data_loader_; }
  std::string Text() const {
    const std::optional<PythonFrame>& frame = own_.has_value() ? own_ : innermost_;
    if (!frame.has_value()) return "";
    return absl::StrCat(FileName(*frame), ", line ", frame->line);
  }

 private:
  std::optional<PythonFrame> own_;
  std::optional<PythonFrame> innermost_;
  bool in_data_loader_ = false;
};

class Reader {
 public:
  void Read(absl::string_view line) {
    if (torchrun_failed_) return ReadTorchrun(line);
    const bool uncaught = ConsumeRank(&line);
    if (absl::StartsWith(line, "  ")) return ReadIndented(line);
    // Not indented, it follows the frames.
    const absl::string_view type = std::exchange(in_frames_, false) ? TypeOf(line) : "";
    if (!type.empty()) return Found(type, line, uncaught);
    if (line.empty() || !found_.has_value()) return;
    if (absl::StartsWith(line, "Original Traceback (most recent call last)")) {
      raised_in_ = RaisedIn(*found_);
      return;
    }
    if (absl::StartsWith(line, "The above exception was the direct cause") ||
        absl::StartsWith(line, "During handling of the above exception")) {
      causes_ = found_->causes;
      causes_.push_back({found_->line, found_->where});
      return;
    }
    // A message of several lines goes on.
    if (uncaught_ || line[0] == '\t' || IsAfterTheEnd(line)) return;
    found_->last = false;
  }
  std::optional<PythonException> Take() { return std::move(found_); }

 private:
  void ReadIndented(absl::string_view line) {
    const std::optional<PythonFrame> frame = ParsePythonFrame(line);
    if (!frame.has_value()) return;
    if (!in_frames_) {
      outer_ = std::exchange(where_, Where());
      in_frames_ = true;
    }
    where_.See(*frame);
  }

  // Of the box in which torchrun shows the rank that failed first "  exitcode  : 9 (pid: 4711)",
  // and rather "  traceback : Signal 9 (SIGKILL) received by PID 4711".
  void ReadTorchrun(absl::string_view line) {
    if (!IsTorchruns(found_->type)) return;  // it ended because of that exception
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    const absl::string_view value =
        absl::StripLeadingAsciiWhitespace(text.substr(text.find(':') + 1));
    if (absl::StartsWith(text, "exitcode")) found_->line = text;
    if (absl::StartsWith(text, "traceback") && absl::StartsWith(value, "Signal ")) {
      found_->line = value;
    }
  }

  void Found(absl::string_view type, absl::string_view line, bool uncaught) {
    absl::string_view raised_in = std::exchange(raised_in_, "");
    if (raised_in.empty() && where_.in_data_loader() && SaysConnectionEnded(type)) {
      raised_in = "receiving from a DataLoader worker";
    }
    torchrun_failed_ = IsTorchruns(type);
    if (torchrun_failed_) {
      if (uncaught_first_.has_value()) found_ = uncaught_first_;
      if (!found_.has_value()) found_ = PythonException{type, line, "", "", {}, true};
      found_->last = true;
      return;
    }
    // What a package did in another process it did for the line that was reading from there.
    const Where& where = !raised_in.empty() && !where_.has_own() ? outer_ : where_;
    found_ = {type, line, where.Text(), raised_in, std::exchange(causes_, {}), true};
    uncaught_ = uncaught;
    if (uncaught && !uncaught_first_.has_value()) uncaught_first_ = found_;
  }

  std::optional<PythonException> found_;
  bool uncaught_ = false;  // it is
  // Of one of several programs that write here, the others' being its consequences.
  std::optional<PythonException> uncaught_first_;
  bool torchrun_failed_ = false;
  Where where_;
  Where outer_;  // of the traceback before
  bool in_frames_ = false;
  // Of the one that is read next.
  absl::string_view raised_in_;
  std::vector<PythonException::Cause> causes_;
};

}  // namespace

std::optional<PythonException> LastPythonException(absl::string_view lines) {
  Reader reader;
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) reader.Read(line);
  return reader.Take();
}

}  // namespace cadre::rpc
