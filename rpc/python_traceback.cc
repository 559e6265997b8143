// Parses Python tracebacks: their exceptions and their frames.
#include "rpc/python_traceback.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace cadre::rpc {
namespace {

// The number of outermost frames of a stack that show what the program is.
constexpr int kOutermost = 3;
// The limit of one line when lines are shortened.
constexpr size_t kLongestLine = 320;
constexpr size_t kGapBytes = 32;

// PyTorch puts "[rank1]: " before each line of an uncaught exception's traceback.
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
// this is not the last line of a traceback.
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

// In an ExceptionGroup's traceback each line begins with "  | ", indented by two more for each
// nested group.
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

// Lines that may follow the end of a program: PyTorch's warnings, and the abort of an interpreter
// that ends while threads of PyTorch still run.
bool IsAfterTheEnd(absl::string_view line) {
  if (line == "terminate called without an active exception") return true;
  absl::string_view rest = line;
  if (absl::ConsumePrefix(&rest, "[rank")) rest = rest.substr(rest.find(']') + 1);
  absl::ConsumePrefix(&rest, ":");
  return absl::StartsWith(rest, "[W");
}

// torchrun's own exception needed no more of the programs it started than their exit statuses.
bool IsTorchruns(absl::string_view type) { return absl::EndsWith(type, ".ChildFailedError"); }

// If a data loader's process dies while it passes a batch, this is the only error.
bool IsConnectionError(absl::string_view type) {
  return type == "ConnectionResetError" || type == "ConnectionRefusedError" ||
         type == "BrokenPipeError" || type == "EOFError";
}

// Where an exception was raised: the innermost frames since its traceback began.
class Where {
 public:
  // `program` comes from the stacks that were read before.
  void Add(const PythonFrame& frame, UserFrames* program) {
    user_frames_.Add(frame);
    if (user_frames_.is_package()) *program = user_frames_;
    if (program->Has(frame.file)) own_ = frame;
    in_data_loader_ |= absl::EndsWith(frame.file, "torch/utils/data/dataloader.py");
    innermost_ = frame;
    ++frames_;
  }
  // An exception without a line of the user's may be the consequence of one that has some.
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
  UserFrames user_frames_;
  std::optional<PythonFrame> own_;
  std::optional<PythonFrame> innermost_;
  bool in_data_loader_ = false;
  int frames_ = 0;
};

class Reader {
 public:
  // Reads the line, and returns whether it is needed to know all of the exception.
  bool IsNeeded(absl::string_view line) {
    needed_ = false;
    Read(line);
    return needed_;
  }
  // The line read last ended an exception.
  bool found_now() const { return found_now_; }
  void Read(absl::string_view line) {
    found_now_ = false;
    if (torchrun_failed_) return ReadTorchrun(line);
    const bool uncaught = ConsumeRank(&line);
    line = WithoutGroup(line);
    if (absl::StartsWith(line, "  ")) return ReadIndented(line);
    // The first line after the frames that is not indented.
    const absl::string_view type = std::exchange(in_frames_, false) ? TypeOf(line) : "";
    if (!type.empty()) return Found(type, line, uncaught);
    if (line.empty() || !found_.has_value()) return;
    if (absl::StartsWith(line, "Original Traceback (most recent call last)")) {
      needed_ = true;
      raised_in_ = RaisedIn(*found_);
      return;
    }
    if (absl::StartsWith(line, "The above exception was the direct cause") ||
        absl::StartsWith(line, "During handling of the above exception")) {
      causes_ = found_->causes;
      causes_.push_back({found_->line, found_->where});
      needed_ = true;
      return;
    }
    // The line continues a message of several lines.
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
    where_.Add(*frame, &program_);
    needed_ = where_.innermost_is_own() || where_.frames() <= kOutermost;
  }

  // Reads torchrun's box about the rank that failed first: "  exitcode  : 9 (pid: 4711)", and
  // preferably "  traceback : Signal 9 (SIGKILL) received by PID 4711".
  void ReadTorchrun(absl::string_view line) {
    if (!IsTorchruns(found_->type)) return;  // it ended because of that exception
    needed_ = true;
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
    needed_ = found_now_ = true;
    if (raised_in.empty() && where_.in_data_loader() && IsConnectionError(type)) {
      raised_in = "receiving from a DataLoader worker";
    }
    torchrun_failed_ = IsTorchruns(type);
    if (torchrun_failed_) {
      if (uncaught_first_.has_value()) found_ = uncaught_first_;
      if (!found_.has_value()) found_ = PythonException{type, line, "", "", {}, true};
      found_->last = true;
      return;
    }
    // What a package did in another process is attributed to the user's line that was reading from
    // it.
    const Where& where = !raised_in.empty() && !where_.has_own() ? outer_ : where_;
    found_ = {type, line, where.Text(), raised_in, std::exchange(causes_, {}), true};
    uncaught_ = uncaught;
    if (uncaught && !uncaught_first_.has_value()) uncaught_first_ = found_;
  }

  std::optional<PythonException> found_;
  bool uncaught_ = false;  // PyTorch marked `found_` as uncaught.
  // The first uncaught exception, if several programs write here; the others are its consequences.
  std::optional<PythonException> uncaught_first_;
  bool torchrun_failed_ = false;
  Where where_;
  Where outer_;  // of the traceback before
  UserFrames program_;
  bool needed_ = false;
  bool found_now_ = false;
  bool in_frames_ = false;
  // Of the exception that is read next.
  absl::string_view raised_in_;
  std::vector<PythonException::Cause> causes_;
};

// Keeps the beginning of a long line, and says how long it was.
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
  std::vector<bool> needed;
  size_t frame =
      0;  // the last one that was read, with which an exception goes that has no line of the user's
  for (size_t i = 0; i < lines.size(); ++i) {
    needed.push_back(reader.IsNeeded(lines[i]));
    if (reader.found_now()) needed[frame] = true;  // the innermost call
    if (absl::StrContains(lines[i], "  File \"")) frame = i;
    // The source line of a frame is kept if the frame is.
    if (i > 0 && i == frame + 1) needed[i] = needed[frame];
  }
  // From the end on: first the lines that are needed, in most of the room, then all that fit.
  std::vector<bool> kept(lines.size());
  size_t bytes = 2 * kGapBytes;
  for (const bool all : {false, true}) {
    for (size_t i = lines.size(); i-- > 0;) {
      const bool next_to_kept = i + 1 == lines.size() || kept[i + 1];
      if (kept[i] || (!all && !needed[i])) continue;
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
    // A gap before the first line kept is not mentioned: these are only the last lines anyway.
    if (left_out > 0 && !shortened.empty()) shortened += GapText(left_out);
    left_out = 0;
    absl::StrAppend(&shortened, lines[i], "\n");
  }
  if (left_out > 0) shortened += GapText(left_out);
  return shortened;
}

namespace {

// A program's package `cadre` is ours, wherever it is (in an archive or a checkout), and so is the
// start hook.
bool IsCadres(absl::string_view file) {
  if (absl::EndsWith(file, "/sitecustomize.py")) return true;
  const size_t folder = file.rfind("/cadre/");
  if (folder == file.npos) return false;
  const absl::string_view name = file.substr(folder + 7);
  if (absl::StrContains(name, "/")) return false;
  return absl::StartsWith(name, "_") || name == "checkpoint.py" || name == "torch_backend.py" ||
         name == "torch_rendezvous.py";
}

// "/venv/lib/python3.11/site-packages/package/"; the file itself for a module outside a package.
// Empty: it is not installed.
std::string PackageFolder(absl::string_view file) {
  for (const absl::string_view packages : {"/site-packages/", "/dist-packages/"}) {
    const size_t found = file.rfind(packages);
    if (found == file.npos) continue;
    const size_t end = file.find('/', found + packages.size());
    return std::string(file.substr(0, end == file.npos ? end : end + 1));
  }
  return "";
}

// A frame of Python's own code that starts a module.
bool IsRunpys(const PythonFrame& frame) {
  return absl::StrContains(frame.file, "runpy") &&
         (absl::StartsWith(frame.function, "_run_") || frame.function == "run_module");
}

// "/venv/lib/python3" of "/venv/bin/train", a script that pip made. Empty: it is no such script.
std::string PackagesBeside(const PythonFrame& frame) {
  const size_t folder = frame.file.rfind("/bin/");
  if (folder == std::string::npos || frame.function != "<module>" ||
      frame.file.find_first_of("/.", folder + 5) != std::string::npos) {
    return "";
  }
  return frame.file.substr(0, folder) + "/lib/python3";
}

}  // namespace

std::optional<PythonFrame> ParsePythonFrame(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "  File \"")) return std::nullopt;
  constexpr absl::string_view kLine = "\", line ";
  // The last match, because the file's name may contain the text too.
  const size_t end = line.rfind(kLine);
  if (end == line.npos) return std::nullopt;
  PythonFrame frame;
  frame.file = std::string(line.substr(0, end));
  line.remove_prefix(end + kLine.size());
  const size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
  if (!absl::SimpleAtoi(line.substr(0, digits), &frame.line)) return std::nullopt;
  line.remove_prefix(digits);
  absl::ConsumePrefix(&line, ",");
  if (absl::ConsumePrefix(&line, " in ")) frame.function = std::string(line);
  return frame;
}

bool IsInstalledPython(absl::string_view file) {
  return absl::StrContains(file, "/site-packages/") || absl::StrContains(file, "/dist-packages/") ||
         absl::StrContains(file, "/lib/python3") || absl::StartsWith(file, "<") || IsCadres(file);
}

void UserFrames::Add(const PythonFrame& frame) {
  if (outer_ == Outer::kOther) return;
  if (outer_ != Outer::kScript && IsRunpys(frame)) {
    outer_ = Outer::kRunpy;
    return;
  }
  if (outer_ == Outer::kNothing) {
    packages_ = PackagesBeside(frame);
    outer_ = packages_.empty() ? Outer::kOther : Outer::kScript;
    return;
  }
  if (outer_ == Outer::kRunpy || absl::StartsWith(frame.file, packages_)) {
    package_ = PackageFolder(frame.file);
  }
  outer_ = Outer::kOther;
}

bool UserFrames::Has(absl::string_view file) const {
  return !IsInstalledPython(file) || (!package_.empty() && absl::StartsWith(file, package_));
}

absl::string_view FileName(const PythonFrame& frame) {
  const absl::string_view file = frame.file;
  return file.substr(file.rfind('/') + 1);
}

}  // namespace cadre::rpc
