// cadre-supervisor: starts, watches, signals and reaps the workers of one agent. It is only started
// by the agent, with a socket as descriptor 3. CADRE_CGROUPS=off in the environment keeps it from
// using cgroups.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "agent/supervisor/loop.h"
#include "agent/supervisor/output.h"
#include "base/exit_codes.h"

namespace cadre::supervisor {
namespace {

constexpr int kAgentFd = 3;

// The agent decides how to react to signals; those that the terminal or a scheduler sends to all
// processes stay pending here for good. SIGCHLD is read from a signalfd.
void BlockSignals() {
  struct sigaction fallback = {};
  fallback.sa_handler = SIG_DFL;
  // If SIGCHLD were ignored, exit statuses would be lost.
  sigaction(SIGCHLD, &fallback, nullptr);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
}

// Many workers need many descriptors; each worker gets the old limit back.
rlimit RaiseDescriptorLimit() {
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit raised = before;
  raised.rlim_cur = raised.rlim_max;
  setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

int Main(const std::string& id, uint32_t frames_version) {
  BlockSignals();
  close_range(kAgentFd + 1, ~0u, 0);
  fcntl(kAgentFd, F_SETFD, FD_CLOEXEC);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // A supervisor that is stopped (SIGSTOP) must notice its agent's end too.
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  ScopedFd null_device(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_device.ok()) {
    fprintf(stderr, "cadre-supervisor: /dev/null: %s\n", strerror(errno));
    return kExitInternal;
  }
  const char* cgroups = getenv("CADRE_CGROUPS");
  const bool off = cgroups != nullptr && strcmp(cgroups, "off") == 0;
  State state(ScopedFd(kAgentFd), id,
              off ? CgroupTree::None("switched off by CADRE_CGROUPS=off") : CgroupTree::Open(id),
              frames_version);
  state.null_device = std::move(null_device);
  state.descriptors = RaiseDescriptorLimit();
  state.outbox.Send(ReadyFrame{getpid(), state.cgroups.root(), state.cgroups.degraded()});
  state.outbox.Flush();
  const absl::Status status = RunLoop(state);
  state.groups.clear();
  state.files.Drain(kDrainLimit);
  FlushWarnings();
  if (status.ok()) return 0;
  fprintf(stderr, "cadre-supervisor: %s\n", std::string(status.message()).c_str());
  return kExitInternal;
}

}  // namespace
}  // namespace cadre::supervisor

int main(int argc, char** argv) {
  int type = 0;
  socklen_t size = sizeof(type);
  // An earlier agent may start this program after its own was replaced.
  uint32_t frames_version = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &frames_version) ||
      !cadre::supervisor::SpeaksFrames(frames_version) ||
      getsockopt(cadre::supervisor::kAgentFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
    fprintf(stderr,
            "cadre-supervisor: only cadre starts this program, with a socket as descriptor 3\n");
    return cadre::kExitUsage;
  }
  return cadre::supervisor::Main(argv[1], frames_version);
}
