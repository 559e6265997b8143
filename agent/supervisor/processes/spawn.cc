#include "agent/supervisor/processes/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
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
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/child.h"
#include "agent/supervisor/processes/cpu_mask.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/process_scan.h"

namespace cadre::supervisor {
namespace {

constexpr char kStandbyVariable[] = "CADRE_STANDS_BY";
constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";
constexpr char kOomScoreFile[] = "/proc/self/oom_score_adj";
// In thousandths of the machine's memory, as oom_score_adj has it: by so much a worker counts
// larger.
constexpr int kOomScoreStep = 100;
constexpr int kMaxOomScore = 1000;

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

struct Forked {
  pid_t pid = -1;
  int pidfd = -1;
  bool in_cgroup = false;
  int error = 0;
};

// clone3 gives the pidfd and the place in the cgroup in one step, so that no child is ever outside.
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

// Where clone3 is not to be had (some container runtimes forbid it): fork, and the child joins the
// cgroup by itself.
Forked PlainFork(bool joins_cgroup) {
  Forked forked;
  forked.pid = fork();
  forked.error = forked.pid < 0 ? errno : 0;
  forked.in_cgroup = joins_cgroup;
  if (forked.pid > 0) forked.pidfd = OpenPidfd(forked.pid);
  return forked;
}

// When memory runs out a worker is killed before those who would bring it back. A protection that
// an administrator gave this process is not for workers.
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
  plan.ignore_warning = getenv("SLURM_STEP_ID") != nullptr;
  plan.cpus = cpus->set();
  plan.cpus_size = cpus->bytes();
  plan.working_dir = start.working_dir.empty() ? nullptr : start.working_dir.c_str();
  plan.programs = program_pointers.data();
  plan.argv = argv.data();
  plan.shell_argv = shell_argv.data();
  plan.environment = environment_pointers.data();

  Forked forked = Clone3(request.cgroup_fd);
  // Out of processes is the truth and stays; any other refusal is of clone3 or of the cgroup.
  if (forked.pid < 0 && forked.error != EAGAIN && forked.error != ENOMEM) {
    ScopedFd procs;
    if (request.cgroup_fd >= 0) {
      procs.Reset(openat(request.cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC));
    }
    // A cgroup that may not be joined gives way to the scan of /proc.
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

}  // namespace cadre::supervisor
