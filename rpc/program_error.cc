#include "rpc/program_error.h"

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "nlohmann/json.hpp"
#include "rpc/lost_peer.h"
#include "rpc/python_traceback.h"

namespace cadre::rpc {
namespace {

// CPython's exit status after an uncaught exception, and if it cannot open the script.
constexpr int kUncaught = 1;
constexpr int kNoScript = 2;
// The dynamic linker's exit status.
constexpr int kNoLibrary = 127;
constexpr size_t kMaxTextBytes = 320;

bool IsOutOfMemory(const PythonException& exception) {
  return exception.type == "MemoryError" || absl::EndsWith(exception.type, "OutOfMemoryError") ||
         absl::EndsWith(exception.type, "ArrayMemoryError") ||
         absl::StrContains(exception.line, "can't allocate memory") ||
         absl::StrContains(exception.line, "CUDA out of memory") ||
         // Data loaders pass their batches through /dev/shm.
         absl::StrContains(exception.line, "unable to allocate shared memory") ||
         absl::StrContains(exception.line, "out of shared memory");
}

bool CannotLoad(const PythonException& exception) {
  for (const char* type :
       {"SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError", "ImportError"}) {
    // The program logged the exception and continued unless it was the last.
    if (exception.type == type) return exception.last;
  }
  return false;
}

// PyTorch raises the error a second time, without the signal that ended the process.
bool RepeatsItsCause(absl::string_view line, absl::string_view cause) {
  return absl::StrContains(line, "DataLoader worker (pid(s)") &&
         absl::StrContains(cause, "DataLoader worker (pid ");
}

ProgramError ErrorOf(PythonException exception) {
  // A program may raise its own error because it lost a peer, or find its peers gone while it
  // cleans up after its own error.
  const absl::string_view first =
      exception.causes.empty() ? exception.line : exception.causes.front().line;
  const bool lost_peer = ReportsLostPeer(first), timed_out = ReportsPeerTimeout(first);
  if (ReportsLostPeer(exception.line) && !lost_peer) {
    exception.line = exception.causes.front().line;
    exception.where = exception.causes.front().where;
  } else if (!exception.causes.empty() &&
             RepeatsItsCause(exception.line, exception.causes.back().line)) {
    exception.line = exception.causes.back().line;
  }
  ProgramError error;
  if (lost_peer) error.kind = ProgramError::Kind::kLostPeer;
  error.timed_out = timed_out;
  if (IsOutOfMemory(exception)) error.kind = ProgramError::Kind::kOutOfMemory;
  if (CannotLoad(exception)) error.kind = ProgramError::Kind::kCannotLoad;
  error.text = OneLine(absl::StripTrailingAsciiWhitespace(exception.line), kMaxTextBytes);
  std::string where = exception.where;
  if (!exception.raised_in.empty()) {
    absl::StrAppend(&where, where.empty() ? "" : ", ", "in ", exception.raised_in);
  }
  if (!where.empty()) absl::StrAppend(&error.text, " (", OneLine(where, kMaxTextBytes), ")");
  return error;
}

// Returns the first line for which `predicate` is true.
template <typename Predicate>
std::optional<ProgramError> FirstLineWith(absl::string_view lines, ProgramError::Kind kind,
                                          Predicate predicate) {
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    if (predicate(line)) {
      return ProgramError{kind, ReportsPeerTimeout(line), OneLine(line, kMaxTextBytes)};
    }
  }
  return std::nullopt;
}

// Finds what the C or C++ library printed before it aborted, for an uncaught exception or a failed
// assert().
std::optional<ProgramError> AbortMessage(absl::string_view lines) {
  std::string type;
  std::optional<ProgramError> found;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    if (absl::ConsumePrefix(&line, "terminate called after throwing an instance of '")) {
      type = std::string(absl::StripSuffix(line, "'"));
      found = ProgramError{ProgramError::Kind::kException, false, OneLine(type, kMaxTextBytes)};
    } else if (!type.empty() && absl::ConsumePrefix(&line, "  what():  ")) {
      found->text = OneLine(absl::StrCat(type, ": ", line), kMaxTextBytes);
    } else if (absl::StrContains(line, ": Assertion `") && absl::EndsWith(line, "' failed.")) {
      found = ProgramError{ProgramError::Kind::kException, false, OneLine(line, kMaxTextBytes)};
    }
  }
  return found;
}

// Finds what a library printed before it aborted, or the exception after which the interpreter
// aborted at its end.
std::optional<ProgramError> AbortOf(absl::string_view lines) {
  const auto memory = FirstLineWith(
      lines, ProgramError::Kind::kOutOfMemory,
      [](absl::string_view line) { return absl::StrContains(line, "std::bad_alloc"); });
  if (memory.has_value()) return memory;
  std::optional<PythonException> exception = LastPythonException(lines);
  if (exception.has_value() && exception->last) return ErrorOf(*std::move(exception));
  auto lost_peer = FirstLineWith(lines, ProgramError::Kind::kLostPeer, ReportsLostPeer);
  return lost_peer.has_value() ? lost_peer : AbortMessage(lines);
}

std::string LastLine(absl::string_view lines) {
  lines = absl::StripAsciiWhitespace(lines);
  const size_t end = lines.rfind('\n');
  return OneLine(end == lines.npos ? lines : lines.substr(end + 1), kMaxTextBytes);
}

// The interpreter found no program to run. It then prints an error after its own path instead of a
// traceback: "/usr/bin/python3.11: No module named train".
std::optional<ProgramError> NoProgram(absl::string_view last_line) {
  // The first may contain the second.
  for (const char* says : {": Error while finding module specification for ", ": No module named ",
                           ": can't open file ", ": can't find '__main__' module in ",
                           ": No code object available for "}) {
    const size_t found = last_line.find(says);
    if (found == last_line.npos) continue;
    const absl::string_view interpreter = last_line.substr(0, found);
    if (!absl::StartsWith(interpreter.substr(interpreter.rfind('/') + 1), "py")) continue;
    const absl::string_view what = last_line.substr(found + 2);
    // A file system may fail only for a while, and have the script later.
    if (absl::StartsWith(what, "can't open") && !absl::StrContains(what, "[Errno 2]") &&
        !absl::StrContains(what, "[Errno 13]")) {
      continue;
    }
    return ProgramError{ProgramError::Kind::kCannotLoad, false, std::string(what)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<ProgramError> FindProgramError(const v1::WorkerExit& exit) {
  const absl::string_view lines = exit.last_lines();
  if (exit.exec_errno() != 0) return std::nullopt;
  if (exit.signal() == SIGABRT) return AbortOf(lines);
  if (exit.signal() != 0) return std::nullopt;
  if (exit.exit_code() == kNoLibrary) {
    return FirstLineWith(lines, ProgramError::Kind::kCannotLoad, [](absl::string_view line) {
      return absl::StrContains(line, "error while loading shared libraries");
    });
  }
  if (exit.exit_code() == kNoScript) return NoProgram(LastLine(lines));
  if (exit.exit_code() != kUncaught) return std::nullopt;
  std::optional<PythonException> exception = LastPythonException(lines);
  if (exception.has_value() && exception->last) return ErrorOf(*std::move(exception));
  // sys.exit("no data in /data") prints only the text, without a traceback.
  const std::string last = LastLine(lines);
  const std::optional<ProgramError> no_program = NoProgram(last);
  if (no_program.has_value()) return no_program;
  if (!exception.has_value()) {
    if (last.empty()) return std::nullopt;
    return ProgramError{
        ReportsLostPeer(last) ? ProgramError::Kind::kLostPeer : ProgramError::Kind::kLastLine,
        ReportsPeerTimeout(last), last};
  }
  ProgramError error = ErrorOf(*std::move(exception));
  absl::StrAppend(&error.text, "; its last line: ", last);
  return error;
}

std::optional<int64_t> ErrorFileSeconds(const v1::WorkerExit& exit) {
  const nlohmann::json root = nlohmann::json::parse(exit.error_json(), nullptr, false);
  if (!root.is_object() || !root.contains("message")) return std::nullopt;
  // PyTorch's @record writes {"message": {"message": ..., "extraInfo": {"timestamp":
  // "1700000000"}}}; other programs write "message" and "timestamp" side by side.
  const nlohmann::json* holder = &root;
  const nlohmann::json& message = root["message"];
  if (message.is_object() && message.contains("extraInfo")) holder = &message["extraInfo"];
  if (!holder->is_object() || !holder->contains("timestamp")) return std::nullopt;
  const nlohmann::json& time = (*holder)["timestamp"];
  int64_t seconds = 0;
  if (time.is_number_integer()) return time.get<int64_t>();
  if (time.is_string() && absl::SimpleAtoi(time.get<std::string>(), &seconds)) return seconds;
  return std::nullopt;
}

}  // namespace cadre::rpc
