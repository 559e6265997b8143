#include "agent/workers/exit_report.h"

#include <errno.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "agent/core/worker_state.h"
#include "base/text.h"
#include "rpc/python_traceback.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

constexpr int kInvalidEnvironment = EINVAL;
// The server keeps at most this much of them.
constexpr size_t kMaxLastLinesBytes = 4 << 10;

}  // namespace

v1::WorkerExit ExitOf(const supervisor::ExitedFrame& frame) {
  v1::WorkerExit exit;
  exit.set_exit_code(frame.exit_code);
  exit.set_signal(frame.signal);
  exit.set_core_dumped(frame.core_dumped);
  exit.set_exec_errno(frame.exec_errno);
  exit.set_exec_step(frame.exec_step);
  exit.set_out_of_memory(frame.out_of_memory);
  // A worker that failed because a child was killed reports that itself.
  if (frame.memory_limit != 0 && frame.signal == SIGKILL) {
    exit.set_ended_with(absl::StrCat("out of memory, as the job reached its limit of ",
                                     SizeText(frame.memory_limit), " on this node"));
  }
  // Workers' output may be any bytes, cut at any point.
  exit.set_last_lines(
      rpc::ShortenedLines(ReplaceInvalidUtf8(frame.last_lines), kMaxLastLinesBytes));
  exit.set_error_json(ReplaceInvalidUtf8(frame.error_json));
  exit.set_pid(frame.pid);
  return exit;
}

std::string HowItEnded(const supervisor::ExitedFrame& frame) {
  const v1::WorkerExit exit = ExitOf(frame);
  return rpc::HowItEnded(exit, ClassifyExit(exit, /*stopped_by_us=*/true));
}

v1::WorkerRemains UnkillableProcessesOf(const supervisor::RemainsFrame& frame,
                                        uint32_t local_rank) {
  v1::WorkerRemains remains;
  remains.set_local_rank(local_rank);
  for (const supervisor::RemainingProcess& one : frame.processes) {
    v1::RemainingProcess* process = remains.add_processes();
    process->set_pid(one.pid);
    process->set_state(std::string(1, one.state));
    process->set_wchan(ReplaceInvalidUtf8(one.kernel_function));
  }
  return remains;
}

v1::WorkerExit NotStarted(const absl::Status& why, const DirectoryFailure& directory) {
  v1::WorkerExit exit;
  if (directory.error != 0) {
    exit.set_exec_errno(directory.error);
    exit.set_exec_step(absl::StrCat("log directory ", directory.path));
  } else {
    exit.set_exec_errno(kInvalidEnvironment);
    exit.set_exec_step("prepare");
  }
  exit.set_last_lines(std::string(why.message()));
  return exit;
}

v1::WorkerExit PortIsTaken(uint32_t port, const std::string& by) {
  v1::WorkerExit exit;
  exit.set_exec_errno(EADDRINUSE);
  exit.set_exec_step(absl::StrCat("MASTER_PORT ", port));
  exit.set_ended_with(absl::StrCat(exit.exec_step(), " is taken", by.empty() ? "" : " by ", by));
  return exit;
}

std::string EndOfScriptLine(const NoteEndOfScript& note, const std::string& job_id,
                            const std::string& node, const std::string& time) {
  std::string why;
  if (note.cause == v1::TOTAL_TIMEOUT) why = " DUE TO TIME LIMIT";
  // A node is taken from a submitted job only when its agent leaves.
  if (note.cause == v1::PREEMPTED) why = " DUE TO NODE FAILURE";
  if (note.cause == v1::REQUEUED) why = " DUE TO JOB REQUEUE";
  if (!note.reason.empty()) why = absl::StrCat(": ", note.reason);
  return absl::StrCat("cadre: *** JOB ", job_id, " ON ", node, " CANCELLED AT ", time, why,
                      " ***\n");
}

}  // namespace cadre::agent
