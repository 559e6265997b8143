#include "rpc/worker_end.h"

#include <csignal>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rpc/program_error.h"

namespace cadre::rpc {
namespace {

constexpr char kKilledBy[] = "was killed by ";
constexpr char kExitedWith[] = "exited with status ";
constexpr size_t kMaxPlaceBytes = 120;

std::string Suffix(const std::optional<ProgramError>& error) {
  if (!error.has_value()) return "";
  const bool guessed = error->kind == ProgramError::Kind::kLastLine;
  return absl::StrCat(guessed ? "; its last line: " : ": ", error->text);
}

// " at sys.exit(3) (train.py:8 in main)", " in all_reduce (train.py:8 in main)".
std::string At(const v1::RankEvidence& at) {
  if (at.python_where().empty()) return "";
  const std::string where = OneLine(at.python_where(), kMaxPlaceBytes);
  if (at.python_what().empty()) return absl::StrCat(" at ", where);
  return absl::StrCat(at.python() == v1::IN_COLLECTIVE ? " in " : " at ",
                      OneLine(at.python_what(), kMaxPlaceBytes), " (", where, ")");
}

// The text of an exception that ended the program includes the place.
bool KnowsWhere(const std::optional<ProgramError>& error) {
  return error.has_value() && error->kind != ProgramError::Kind::kLastLine;
}

}  // namespace

std::string WorkerName(int64_t rank, int64_t local_rank, absl::string_view node) {
  return absl::StrCat("rank ", rank, " (local rank ", local_rank, ")", node.empty() ? "" : " on ",
                      node);
}

std::string HowItEnded(const v1::WorkerExit& exit, v1::FailureCause cause,
                       const v1::RankEvidence& at) {
  if (exit.exec_errno() != 0) {
    return absl::StrCat("could not be started: ", exit.exec_step(),
                        exit.exec_step().empty() ? "" : ": ", ErrnoText(exit.exec_errno()));
  }
  if (cause == v1::PREEMPTED) return "was ended by SIGTERM, which Cadre did not send: preempted";
  if (!exit.ended_with().empty()) return absl::StrCat("was killed: ", exit.ended_with());
  const std::optional<ProgramError> error = FindProgramError(exit);
  if (cause == v1::OUT_OF_MEMORY) {
    // A worker that was not killed itself failed because of an allocation, or of a killed process.
    return exit.signal() == SIGKILL || !error.has_value()
               ? "was killed because memory ran out"
               : absl::StrCat("ran out of memory: ", error->text);
  }
  if (cause == v1::LOAD_FAILED && error.has_value()) {
    return absl::StrCat("could not be loaded: ", error->text);
  }
  if (exit.signal() > 0) {
    return absl::StrCat(kKilledBy, SignalText(exit.signal()), At(at),
                        exit.core_dumped() ? ", core dumped" : "", Suffix(error));
  }
  return absl::StrCat(kExitedWith, exit.exit_code(), KnowsWhere(error) ? "" : At(at),
                      Suffix(error));
}

std::string WithoutDetails(absl::string_view sentence) {
  size_t end = sentence.npos;
  const size_t killed = sentence.find(kKilledBy), exited = sentence.find(kExitedWith);
  if (killed < exited) {
    end = sentence.find(')', killed);  // "signal 11 (SIGSEGV)"
    if (end != sentence.npos) ++end;
  } else if (exited != sentence.npos) {
    end = sentence.find_first_not_of("-0123456789", exited + sizeof(kExitedWith) - 1);
  }
  return std::string(sentence.substr(0, end));
}

std::string UnkillableText(const v1::WorkerRemains& remains) {
  std::vector<std::string> processes;
  for (const v1::RemainingProcess& process : remains.processes()) {
    if (processes.size() == kFirstFew) break;
    const std::string where = process.wchan().empty() ? "the kernel" : OneLine(process.wchan(), 64);
    processes.push_back(absl::StrCat("pid ", process.pid(), " is in ", where, " (state ",
                                     OneLine(process.state(), 4), ")"));
  }
  return absl::StrCat("outlives SIGKILL: ", FirstFew(processes, remains.processes_size()),
                      "; only the file system or device that it waits for, or a restart of the "
                      "machine, ends it");
}

}  // namespace cadre::rpc
