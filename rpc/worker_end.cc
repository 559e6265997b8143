#include "rpc/worker_end.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::rpc {

std::string HowItEnded(const v1::WorkerExit& exit, v1::FailureCause cause) {
  if (exit.exec_errno() != 0) {
    return absl::StrCat("could not be started: ", exit.exec_step(),
                        exit.exec_step().empty() ? "" : ": ", ErrnoText(exit.exec_errno()));
  }
  if (cause == v1::PREEMPTED) return "was ended by SIGTERM, which Cadre did not send: preempted";
  if (!exit.ended_with().empty()) return absl::StrCat("was killed: ", exit.ended_with());
  if (cause == v1::OUT_OF_MEMORY) return "was killed because memory ran out";
  if (exit.signal() > 0) {
    return absl::StrCat("was killed by ", SignalText(exit.signal()),
                        exit.core_dumped() ? ", core dumped" : "");
  }
  return absl::StrCat("exited with status ", exit.exit_code());
}

}  // namespace cadre::rpc
