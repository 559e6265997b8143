#include "rpc/python_exception.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "rpc/python_frame.h"

namespace cadre::rpc {
namespace {

// Of a stack so many outermost calls tell what the program is.
constexpr int kOutermost = 3;
// Of a line where many are to be shortened.
constexpr size_t kLongestLine = 320;
constexpr size_t kGapBytes = 32;

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

bool MayBeginName(char c) {
  return absl::ascii_isalpha(c) || c == '_' || (static_cast<unsigned char>(c) & 0x80) != 0;
}

// "ValueError" of "ValueError: ..."; "_pickle.PicklingError"; "train.main.<locals>.NoData". Empty:
// no exception's last line begins like this.
absl::string_view TypeOf(absl::string_view line) {
  const absl::string_view type = line.substr(0, line.find(':'));
  for (const absl::string_view part : absl::StrSplit(type, '.')) {
    if (part == "<locals>") continue;
    if (part.empty() || !MayBeginName(part[0])) return "";
    for (const char c : part) {
      if (!MayBeginName(c) && !absl::ascii_isdigit(c)) return "";
    }
  }
  return type;
}

// Of an ExceptionGroup's traceback each line has "  | " in front, deeper by two for each group
// within a group.
absl::string_view WithoutGroup(absl::string_view line) {
  const size_t bar = line.find_first_not_of(' ');
  if (bar == 0 || bar == line.npos || (line[bar] != '|' && line[bar] != '+')) return line;
  absl::string_view rest = line.substr(bar + 1);
  if (line[bar] == '|' && (rest.empty() || absl::ConsumePrefix(&rest, " "))) return rest;
  // "  + Exception Group Traceback (most recent call last):", "  +-+---------------- 1
  // ----------------".
  return absl::StartsWith(rest, " Exception Group Traceback") || absl::StartsWith(rest, "-") ? "  "
                                                                                             : line;
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
  // `program`: of the stacks that were read before.
  void See(const PythonFrame& frame, OwnPython* program) {
    own_python_.See(frame);
    if (own_python_.is_package()) *program = own_python_;
    if (program->Has(frame.file)) own_ = frame;
    in_data_loader_ |= absl::EndsWith(frame.file, "torch/utils/data/dataloader.py");
    innermost_ = frame;
    ++frames_;
  }
  // One that names no line of the user's may be the consequence of one that does.
  bool has_own() const { return own_.has_value(); }
  bool in_data_loader() const { return in_data_loader_; }
  int frames() const { return frames_; }
  bool innermost_is_own() const {
    return own_.has_value() && own_->line == innermost_->line && own_->file == innermost_->file;
  }
  std::string Text() const {
    const std::optional<PythonFrame>& frame = own_.has_value() ? own_ : innermost_;
    if (!frame.has_value()) return "";
    return absl::StrCat(FileName(*frame), ", line ", frame->line);
  }

 private:
  OwnPython own_python_;
  std::optional<PythonFrame> own_;
  std::optional<PythonFrame> innermost_;
  bool in_data_loader_ = false;
  int frames_ = 0;
};

class Reader {
 public:
  // Whether something of the exception would not be known without this line.
  bool Tells(absl::string_view line) {
    tells_ = false;
    Read(line);
    return tells_;
  }
  // The line was the last one of an exception.
  bool found_now() const { return found_now_; }
  void Read(absl::string_view line) {
    found_now_ = false;
    if (torchrun_failed_) return ReadTorchrun(line);
    const bool uncaught = ConsumeRank(&line);
    line = WithoutGroup(line);
    if (absl::StartsWith(line, "  ")) return ReadIndented(line);
    // Not indented, it follows the frames.
    const absl::string_view type = std::exchange(in_frames_, false) ? TypeOf(line) : "";
    if (!type.empty()) return Found(type, line, uncaught);
    if (line.empty() || !found_.has_value()) return;
    if (absl::StartsWith(line, "Original Traceback (most recent call last)")) {
      tells_ = true;
      raised_in_ = RaisedIn(*found_);
      return;
    }
    if (absl::StartsWith(line, "The above exception was the direct cause") ||
        absl::StartsWith(line, "During handling of the above exception")) {
      causes_ = found_->causes;
      causes_.push_back({found_->line, found_->where});
      tells_ = true;
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
    where_.See(*frame, &program_);
    tells_ = where_.innermost_is_own() || where_.frames() <= kOutermost;
  }

  // Of the box in which torchrun shows the rank that failed first "  exitcode  : 9 (pid: 4711)",
  // and rather "  traceback : Signal 9 (SIGKILL) received by PID 4711".
  void ReadTorchrun(absl::string_view line) {
    if (!IsTorchruns(found_->type)) return;  // it ended because of that exception
    tells_ = true;
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
    tells_ = found_now_ = true;
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
  OwnPython program_;
  bool tells_ = false;
  bool found_now_ = false;
  bool in_frames_ = false;
  // Of the one that is read next.
  absl::string_view raised_in_;
  std::vector<PythonException::Cause> causes_;
};

// Of a long line its beginning and how much it had.
std::string CutLine(absl::string_view line) {
  if (line.size() <= kLongestLine) return std::string(line);
  return absl::StrCat(Shortened(line, kLongestLine), " [", line.size(), " bytes]");
}

std::string GapText(size_t lines) {
  return absl::StrCat("  [", Count(lines, "line"), " left out]\n");
}

}  // namespace

std::optional<PythonException> LastPythonException(absl::string_view lines) {
  Reader reader;
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) reader.Read(line);
  return reader.Take();
}

std::string ShortenedLines(absl::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    lines.push_back(CutLine(line));
  }
  Reader reader;
  std::vector<bool> tells;
  size_t frame =
      0;  // the last one that was read, with which an exception goes that has no line of the user's
  for (size_t i = 0; i < lines.size(); ++i) {
    tells.push_back(reader.Tells(lines[i]));
    if (reader.found_now()) tells[frame] = true;  // the innermost call
    if (absl::StrContains(lines[i], "  File \"")) frame = i;
    // A frame's source.
    if (i > 0 && i == frame + 1) tells[i] = tells[frame];
  }
  // From the end on: first what tells, in most of the room, and then all that fits.
  std::vector<bool> kept(lines.size());
  size_t bytes = 2 * kGapBytes;
  for (const bool all : {false, true}) {
    for (size_t i = lines.size(); i-- > 0;) {
      const bool next_to_kept = i + 1 == lines.size() || kept[i + 1];
      if (kept[i] || (!all && !tells[i])) continue;
      const size_t size = lines[i].size() + 1 + (next_to_kept ? 0 : kGapBytes);
      if (bytes + size > (all ? limit : limit / 4 * 3)) break;
      kept[i] = true;
      bytes += size;
    }
  }
  std::string shortened;
  size_t left_out = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!kept[i]) {
      ++left_out;
      continue;
    }
    // What was before the first one need not be said: these are the last lines of much.
    if (left_out > 0 && !shortened.empty()) shortened += GapText(left_out);
    left_out = 0;
    absl::StrAppend(&shortened, lines[i], "\n");
  }
  if (left_out > 0) shortened += GapText(left_out);
  return shortened;
}

}  // namespace cadre::rpc
