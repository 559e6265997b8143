#include "agent/supervisor/processes/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/exit_codes.h"

namespace cadre::supervisor {
namespace {

constexpr int kStatusFd = kStandbyFd + 1;

[[noreturn]] void Fail(int status_fd, ChildStep step, int error) {
  const ChildFailure failure{step, error};
  // Nothing is left to do if the supervisor cannot be told; the exit status still says it.
  [[maybe_unused]] const ssize_t n = write(status_fd, &failure, sizeof(failure));
  _exit(ExitCodeOf(error));
}

// The dispositions are set one and all, since an ignored one survives exec; by the system call,
// since glibc keeps two signals to itself and posix_spawn left those ignored in the supervisor.
void ResetSignals(bool ignore_warning) {
  // The kernel's struct sigaction, as SIG_DFL without flags.
  const unsigned long fallback[8] = {};
  constexpr size_t kKernelSetBytes = 8;
  for (int signal = 1; signal < NSIG; ++signal) {
    syscall(SYS_rt_sigaction, signal, fallback, nullptr, kKernelSetBytes);
  }
  if (ignore_warning) signal(SIGUSR1, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Leaves 0, 1, 2, the progress pipe, the socket of one that stands by, and the status pipe that
// exec closes. The sources all lie above kProgressFd, and any may sit on the next two.
bool ArrangeDescriptors(const ChildPlan& plan) {
  if (dup2(plan.stdin_fd, 0) < 0 || dup2(plan.stdout_fd, 1) < 0 || dup2(plan.stderr_fd, 2) < 0 ||
      dup2(plan.progress_fd, kProgressFd) < 0) {
    return false;
  }
  const int status = fcntl(plan.status_fd, F_DUPFD_CLOEXEC, kStatusFd + 1);
  if (status < 0) return false;
  if (plan.standby_fd < 0) {
    close(kStandbyFd);
  } else if (plan.standby_fd == kStandbyFd ? fcntl(kStandbyFd, F_SETFD, 0) != 0
                                           : dup2(plan.standby_fd, kStandbyFd) < 0) {
    return false;
  }
  if (dup3(status, kStatusFd, O_CLOEXEC) < 0) return false;
  // All other descriptors are O_CLOEXEC; this covers what a library might have left open.
  close_range(kStatusFd + 1, ~0u, 0);
  return true;
}

// What the kernel cannot run and no shell could either: a program of another machine or a damaged
// one. As bash has it, that is a file with a byte 0 in its first line.
bool IsBinary(const char* program) {
  const int file = open(program, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char first[256];
  const ssize_t got = read(file, first, sizeof(first));
  close(file);
  for (ssize_t i = 0; i < got && first[i] != '\n'; ++i) {
    if (first[i] == '\0') return true;
  }
  return got >= 4 && memcmp(first, "\177ELF", 4) == 0;
}

// Like execvpe: a program that is absent or may not be run gives way to the next in PATH.
int TryPrograms(const ChildPlan& plan) {
  int error = ENOENT;
  for (const char* const* program = plan.programs; *program != nullptr; ++program) {
    execve(*program, plan.argv, plan.environment);
    if (errno == ENOEXEC) {
      if (IsBinary(*program)) return ENOEXEC;
      plan.shell_argv[1] = const_cast<char*>(*program);
      execve(plan.shell_argv[0], plan.shell_argv, plan.environment);
      return ENOEXEC;
    }
    if (errno == EACCES) {
      struct stat info;
      error = stat(*program, &info) == 0 && S_ISDIR(info.st_mode) ? EISDIR : EACCES;
    } else if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG) {
      return errno;
    }
  }
  return error;
}

// Where it cannot be said the kernel goes by size alone, by which a worker is first as well.
void SetOomScore(const char* score) {
  const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, score, strlen(score));
  close(file);
}

}  // namespace

const char* NameOf(ChildStep step) {
  switch (step) {
    case ChildStep::kSession:
      return "setsid";
    case ChildStep::kParentDeath:
      return "parent gone";
    case ChildStep::kCgroup:
      return "cgroup";
    case ChildStep::kDescriptors:
      return "descriptors";
    case ChildStep::kLimits:
      return "setrlimit";
    case ChildStep::kCpus:
      return "bind cpus";
    case ChildStep::kWorkingDir:
      return "chdir";
    case ChildStep::kExec:
      return "exec";
  }
  return "start";
}

int ExitCodeOf(int error) {
  return error == ENOENT || error == ENOTDIR ? kExitNotFound : kExitNotExecutable;
}

void RunChild(const ChildPlan& plan) {
  int status_fd = plan.status_fd;
  if (setsid() < 0) Fail(status_fd, ChildStep::kSession, errno);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) Fail(status_fd, ChildStep::kParentDeath, errno);
  // The supervisor may have died before the line above.
  if (getppid() != plan.parent) Fail(status_fd, ChildStep::kParentDeath, ESRCH);
  if (plan.cgroup_procs_fd >= 0 && write(plan.cgroup_procs_fd, "0", 1) != 1) {
    Fail(status_fd, ChildStep::kCgroup, errno);
  }
  if (!ArrangeDescriptors(plan)) Fail(status_fd, ChildStep::kDescriptors, errno);
  status_fd = kStatusFd;
  if (setrlimit(RLIMIT_NOFILE, &plan.descriptors) != 0) {
    Fail(status_fd, ChildStep::kLimits, errno);
  }
  SetOomScore(plan.oom_score);
  if (plan.cpus != nullptr && sched_setaffinity(0, plan.cpus_size, plan.cpus) != 0) {
    Fail(status_fd, ChildStep::kCpus, errno);
  }
  if (plan.working_dir != nullptr && chdir(plan.working_dir) != 0) {
    Fail(status_fd, ChildStep::kWorkingDir, errno);
  }
  ResetSignals(plan.ignore_warning);
  Fail(status_fd, ChildStep::kExec, TryPrograms(plan));
}

}  // namespace cadre::supervisor
