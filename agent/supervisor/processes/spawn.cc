#include "agent/supervisor/processes/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/process_scan.h"
#include "base/exit_codes.h"

namespace cadre::supervisor {

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

namespace {

constexpr char kStandbyVariable[] = "CADRE_STANDS_BY";
constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";
constexpr char kOomScoreFile[] = "/proc/self/oom_score_adj";
// Added to a worker's oom_score_adj, in thousandths of the machine's memory.
constexpr int kOomScoreStep = 100;
constexpr int kMaxOomScore = 1000;

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// What the child does is decided before the fork: between fork and exec everything must be
// async-signal-safe, so nothing is allocated.
struct ChildPlan {
  pid_t parent = 0;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int progress_fd = -1;
  int standby_fd = -1;  // -1: not a standby
  int status_fd = -1;
  int cgroup_procs_fd = -1;  // join by writing here; -1: already in, or no cgroup
  rlimit descriptors = {};   // the limit to restore
  // SIGUSR1 is ignored until the program sets a handler: Slurm warns all processes of a step with
  // it, and a program that does not expect it would die before the agent can stop it with grace.
  bool ignore_usr1 = false;
  // Written to /proc/self/oom_score_adj.
  const char* oom_score = nullptr;
  const cpu_set_t* cpus = nullptr;
  size_t cpus_size = 0;
  const char* working_dir = nullptr;      // nullptr: inherit
  const char* const* programs = nullptr;  // tried in turn; ends with nullptr
  char* const* argv = nullptr;
  // {"/bin/sh", filled in by the child, argv[1]...}, for a script without #!.
  char** shell_argv = nullptr;
  char* const* environment = nullptr;
};

constexpr int kStatusFd = kStandbyFd + 1;

[[noreturn]] void Fail(int status_fd, ChildStep step, int error) {
  const ChildFailure failure{step, error};
  // If the write fails too, only the exit status reports the error.
  [[maybe_unused]] const ssize_t n = write(status_fd, &failure, sizeof(failure));
  _exit(ExitCodeOf(error));
}

// All dispositions are reset, since an ignored signal survives exec. This uses the system call,
// since glibc reserves two signals, which posix_spawn has left ignored in the supervisor.
void ResetSignals(bool ignore_usr1) {
  // The kernel's struct sigaction for SIG_DFL without flags.
  const unsigned long fallback[8] = {};
  constexpr size_t kKernelSetBytes = 8;
  for (int signal = 1; signal < NSIG; ++signal) {
    syscall(SYS_rt_sigaction, signal, fallback, nullptr, kKernelSetBytes);
  }
  if (ignore_usr1) signal(SIGUSR1, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Leaves 0, 1, 2, the progress pipe, a standby's socket, and the status pipe, which exec closes.
// The sources are all above kProgressFd, but may be one of the next two numbers.
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
  // All other descriptors are O_CLOEXEC; this closes any that a library might have left open.
  close_range(kStatusFd + 1, ~0u, 0);
  return true;
}

// Whether the file is a program for another machine, or a damaged one, that a shell must not run as
// a script. bash uses the same rule: the first line contains a NUL byte.
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

// Like execvpe: if a program is absent or may not be executed, the next in PATH is tried.
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

// If it cannot be set the kernel decides by size alone, by which a worker usually comes first as
// well.
void SetOomScore(const char* score) {
  const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, score, strlen(score));
  close(file);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  int status_fd = plan.status_fd;
  if (setsid() < 0) Fail(status_fd, ChildStep::kSession, errno);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) Fail(status_fd, ChildStep::kParentDeath, errno);
  // The supervisor may have died before PR_SET_PDEATHSIG was set.
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
  ResetSignals(plan.ignore_usr1);
  Fail(status_fd, ChildStep::kExec, TryPrograms(plan));
}

struct Forked {
  pid_t pid = -1;
  int pidfd = -1;
  bool in_cgroup = false;
  int error = 0;
};

// clone3 creates the pidfd and enters the cgroup atomically, so that no child is ever outside it.
Forked Clone3(int cgroup_fd) {
  clone_args args = {};
  Forked forked;
  args.flags = CLONE_PIDFD;
  args.pidfd = reinterpret_cast<uintptr_t>(&forked.pidfd);
  args.exit_signal = SIGCHLD;
  if (cgroup_fd >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<uint64_t>(cgroup_fd);
  }
  forked.pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof(args)));
  forked.error = forked.pid < 0 ? errno : 0;
  forked.in_cgroup = cgroup_fd >= 0;
  return forked;
}

// For systems without clone3 (some container runtimes forbid it): fork, and the child joins the
// cgroup by itself.
Forked PlainFork(bool joins_cgroup) {
  Forked forked;
  forked.pid = fork();
  forked.error = forked.pid < 0 ? errno : 0;
  forked.in_cgroup = joins_cgroup;
  if (forked.pid > 0) forked.pidfd = OpenPidfd(forked.pid);
  return forked;
}

// If memory runs out, a worker should be killed before the processes that would restart it. A
// protection that an administrator gave this process is not inherited by workers.
std::string OomScore() {
  int own = 0;
  const std::optional<std::string> text = ReadKernelFile(kOomScoreFile);
  if (!text.has_value() || !absl::SimpleAtoi(*text, &own)) own = 0;
  return absl::StrCat(std::min(std::max(own, 0) + kOomScoreStep, kMaxOomScore));
}

Spawned Failed(std::string step, int error) {
  Spawned spawned;
  spawned.failed_step = std::move(step);
  spawned.error = error;
  return spawned;
}

}  // namespace

std::vector<std::string> WorkerEnvironment(const StartFrame& start, const std::string& marker) {
  const std::string marker_entry = absl::StrCat(kMarkerVariable, "=");
  std::vector<std::string> environment = {absl::StrCat(marker_entry, marker),
                                          absl::StrCat("CADRE_PROGRESS_FD=", kProgressFd)};
  if (start.stands_by) environment.push_back(absl::StrCat(kStandbyVariable, "=", kStandbyFd));
  for (const std::string& entry : start.environment) {
    if (absl::StartsWith(entry, marker_entry) || absl::StartsWith(entry, "CADRE_PROGRESS_FD=") ||
        absl::StartsWith(entry, absl::StrCat(kStandbyVariable, "="))) {
      continue;
    }
    environment.push_back(entry);
  }
  return environment;
}

std::vector<std::string> ProgramCandidates(const std::string& program,
                                           const std::vector<std::string>& environment) {
  if (absl::StrContains(program, '/')) return {program};
  std::string path = kDefaultPath;
  for (const std::string& entry : environment) {
    if (absl::StartsWith(entry, "PATH=")) path = entry.substr(5);
  }
  std::vector<std::string> candidates;
  for (absl::string_view folder : absl::StrSplit(path, ':')) {
    // An empty entry of PATH means the working directory.
    candidates.push_back(folder.empty() ? program : absl::StrCat(folder, "/", program));
  }
  return candidates;
}

Spawned Spawn(const SpawnRequest& request) {
  const StartFrame& start = *request.start;
  if (start.argv.empty() || start.argv[0].empty()) return Failed("exec", ENOENT);
  const std::optional<CpuMask> cpus = CpuMask::Of(start.cpus);
  if (!cpus.has_value()) return Failed(NameOf(ChildStep::kCpus), EINVAL);
  int status[2];
  if (pipe2(status, O_CLOEXEC) != 0) return Failed("pipe", errno);
  ScopedFd status_read(status[0]);
  ScopedFd status_write(status[1]);
  fcntl(status_read.get(), F_SETFL, O_NONBLOCK);

  const std::vector<std::string> environment = WorkerEnvironment(start, request.marker);
  const std::vector<std::string> programs = ProgramCandidates(start.argv[0], environment);
  std::vector<std::string> shell_words = {"/bin/sh", ""};
  shell_words.insert(shell_words.end(), start.argv.begin() + 1, start.argv.end());
  const std::vector<char*> program_pointers = Pointers(programs);
  const std::vector<char*> argv = Pointers(start.argv);
  std::vector<char*> shell_argv = Pointers(shell_words);
  const std::vector<char*> environment_pointers = Pointers(environment);

  const std::string oom_score = OomScore();
  ChildPlan plan;
  plan.oom_score = oom_score.c_str();
  plan.parent = getpid();
  plan.stdin_fd = request.stdin_fd;
  plan.stdout_fd = request.stdout_fd;
  plan.stderr_fd = request.stderr_fd;
  plan.progress_fd = request.progress_fd;
  plan.standby_fd = request.standby_fd;
  plan.status_fd = status_write.get();
  plan.descriptors = request.descriptors;
  plan.ignore_usr1 = getenv("SLURM_STEP_ID") != nullptr;
  plan.cpus = cpus->set();
  plan.cpus_size = cpus->bytes();
  plan.working_dir = start.working_dir.empty() ? nullptr : start.working_dir.c_str();
  plan.programs = program_pointers.data();
  plan.argv = argv.data();
  plan.shell_argv = shell_argv.data();
  plan.environment = environment_pointers.data();

  Forked forked = Clone3(request.cgroup_fd);
  // EAGAIN and ENOMEM are final: there are too many processes. Any other error is due to clone3 or
  // the cgroup.
  if (forked.pid < 0 && forked.error != EAGAIN && forked.error != ENOMEM) {
    ScopedFd procs;
    if (request.cgroup_fd >= 0) {
      procs.Reset(openat(request.cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC));
    }
    // Without a cgroup that it may join, the group is tracked by scanning /proc.
    const bool may_join = forked.error == ENOSYS || forked.error == EPERM;
    plan.cgroup_procs_fd = may_join ? procs.get() : -1;
    forked = PlainFork(plan.cgroup_procs_fd >= 0);
    if (forked.pid == 0) RunChild(plan);
  }
  if (forked.pid == 0) RunChild(plan);
  if (forked.pid < 0) return Failed("fork", forked.error);

  Spawned spawned;
  spawned.pid = forked.pid;
  spawned.pidfd.Reset(forked.pidfd);
  spawned.status = std::move(status_read);
  spawned.in_cgroup = forked.in_cgroup;
  return spawned;
}

std::optional<CpuMask> CpuMask::Of(const std::vector<uint32_t>& cpus) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  CpuMask mask;
  for (const uint32_t cpu : cpus) {
    if (cpu >= kMaxCpus) return std::nullopt;
    if (mask.words_.size() <= cpu / kBits) mask.words_.resize(cpu / kBits + 1);
    mask.words_[cpu / kBits] |= 1ul << (cpu % kBits);
  }
  return mask;
}

}  // namespace cadre::supervisor
