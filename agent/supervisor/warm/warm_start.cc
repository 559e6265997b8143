#include "agent/supervisor/warm/warm_start.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/output/complaints.h"
#include "agent/supervisor/process_start.h"
#include "agent/supervisor/processes/cpu_mask.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/warm/hook_file.h"
#include "agent/supervisor/warm/template_process.h"
#include "agent/supervisor/warm/templates.h"

namespace cadre::supervisor {
namespace {

// From the start of a template until it says what it does first.
constexpr absl::Duration kFirstWordLimit = absl::Seconds(1);

bool JoinCgroup(const ScopedFd& cgroup, pid_t pid) {
  const ScopedFd procs(openat(cgroup.get(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
  const std::string text = absl::StrCat(pid);
  return write(procs.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// All that a process of our own would have got before exec. Empty, or why it has not.
std::string Furnish(State& state, uint64_t serial, const StartFrame& start, Spawned& process) {
  siginfo_t info = {};
  const auto pid = static_cast<id_t>(process.pid);
  // The number may be another process's by now, but no other child's.
  if (!process.pidfd.ok() || waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != 0) {
    return "the forked process ended at once";
  }
  const ScopedFd cgroup = state.cgroups.Add(serial);
  process.in_cgroup = cgroup.ok() && JoinCgroup(cgroup, process.pid);
  // It would be killed with the template's.
  if (cgroup.ok() && !process.in_cgroup) return "the forked process cannot be put into its cgroup";
  const std::optional<CpuMask> cpus = CpuMask::Of(start.cpus);
  if (!cpus.has_value()) return "there is no such processor";
  if (cpus->set() != nullptr && sched_setaffinity(process.pid, cpus->bytes(), cpus->set()) != 0) {
    return "the forked process cannot be bound";
  }
  return "";
}

void StartPlainly(State& state, uint64_t serial, Group& group, const StartFrame& start,
                  Plumbing& plumbing, const std::string& why) {
  group.why_plain = why;
  WarmProgram& program = state.programs.at(group.program);
  EndComing(state, program);
  const StartFrame frame = Learning(state, serial, program, start);
  if (!StartProcess(state, serial, frame, plumbing, group)) ReportExit(state, group);
}

// It was to be ended before there was anything.
void EndUnborn(State& state, Group& group) {
  group.end.signal = SIGKILL;
  ReportExit(state, group);
}

void LetGo(State& state, uint64_t serial, Group& group) {
  const std::unique_ptr<WarmStart> warm = std::move(group.warm_start);
  Spawned process;
  process.pid = warm->pid;
  process.pidfd.Reset(OpenPidfd(warm->pid));
  const std::string failed = Furnish(state, serial, warm->start, process);
  if (!failed.empty()) {
    if (process.pidfd.ok()) SignalPidfd(process.pidfd.get(), SIGKILL);
    if (group.ending.asked) return EndUnborn(state, group);
    return StartPlainly(state, serial, group, warm->start, warm->plumbing, failed);
  }
  TakeProcess(state, serial, warm->start, warm->plumbing, std::move(process), group);
  group.warm = true;
  state.outbox.Send(StartedFrame{group.id, group.pid, 0, true, ""});
  if (group.ending.asked) {
    SignalPidfd(group.pidfd.get(), SIGKILL);
  } else if (write(warm->go.get(), "g", 1) != 1) {
    Complain(absl::StrCat("pid ", group.pid, " is gone before it has begun"));
  }
}

bool Fail(State& state, uint64_t serial, Group& group) {
  const std::unique_ptr<WarmStart> warm = std::move(group.warm_start);
  if (group.ending.asked) {
    EndUnborn(state, group);
  } else {
    StartPlainly(state, serial, group, warm->start, warm->plumbing, warm->failed);
  }
  return true;
}

std::string WhyThereIsNone(const State& state, const WarmProgram& program) {
  if (!program.given_up.empty()) return program.given_up;
  if (program.coming.serial != 0) return "its template is still importing";
  if (program.failed) return "its template was not ready";
  if (program.templates > 0) return "its template has ended";
  const auto learner = state.groups.find(program.learner);
  const bool is_first =
      program.learner == 0 || (learner != state.groups.end() && !learner->second.exited);
  return is_first ? "its first start" : "it ended before it was known what it imports";
}

// Until when a start that came then goes better by waiting for a template that still imports: it
// imports what a plain start would, began earlier, and has no other workers beside it. Never for
// longer than a plain start would take in all, and not for one that has to look at packages first,
// or after another one was waited for in vain.
MonoTime WorthWaitingUntil(const WarmProgram& program, MonoTime came) {
  const Template& coming = program.coming;
  if (!program.given_up.empty() || program.failed || coming.serial == 0) return came;
  if (coming.looks && coming.imports_since == MonoTime::Never()) return came;
  const MonoTime ready = coming.imports_since == MonoTime::Never()
                             ? coming.began + kFirstWordLimit
                             : coming.imports_since + program.imports;
  return std::min(came + program.imports, ready);
}

// For one that waits.
void AskOnceThereIsOne(State& state, uint64_t serial, WarmStart& warm, MonoTime now) {
  WarmProgram& program = state.programs.at(warm.program);
  if (program.serving.serial != 0) {
    warm.until = now + kForkLimit;
    AskForFork(state, serial, program, warm);
    return;
  }
  warm.until = WorthWaitingUntil(program, warm.came);
  if (now < warm.until) return;
  warm.failed = WhyThereIsNone(state, program);
}

}  // namespace

void StartWithHook(State& state, uint64_t serial, const StartFrame& start, Plumbing plumbing,
                   Group& group) {
  StartFrame frame = start;
  // Without the hook there are no stacks, which is no reason not to start.
  if (WriteHook(HookDirectory(start)).ok()) frame.environment = WithHook(start, "plain", {});
  if (!StartProcess(state, serial, frame, plumbing, group)) ReportExit(state, group);
}

void StartPythonGroup(State& state, uint64_t serial, const StartFrame& start, Plumbing plumbing,
                      Group& group, MonoTime now) {
  auto warm = std::make_unique<WarmStart>();
  warm->plumbing = std::move(plumbing);
  group.program = ProgramOf(state, start, &group.why_plain);
  if (group.program == 0) {
    if (!StartProcess(state, serial, start, warm->plumbing, group)) ReportExit(state, group);
    return;
  }
  WarmProgram& program = state.programs.at(group.program);
  warm->came = now;
  warm->until = program.serving.serial != 0 ? now + kForkLimit : WorthWaitingUntil(program, now);
  if (warm->until <= now) {
    return StartPlainly(state, serial, group, start, warm->plumbing,
                        WhyThereIsNone(state, program));
  }
  warm->start = start;
  warm->program = group.program;
  group.warm_start = std::move(warm);
  if (program.serving.serial != 0) AskForFork(state, serial, program, *group.warm_start);
}

void AdvanceWarmStarts(State& state, MonoTime now) {
  for (auto& [serial, group] : state.groups) {
    WarmStart* warm = group.warm_start.get();
    if (warm == nullptr) continue;
    if (warm->pid != 0) {
      LetGo(state, serial, group);
      continue;
    }
    if (warm->failed.empty() && warm->asked == 0) AskOnceThereIsOne(state, serial, *warm, now);
    if (warm->failed.empty() && now >= warm->until) warm->failed = "its template does not answer";
    if (!warm->failed.empty() || (warm->asked == 0 && group.ending.asked)) {
      Fail(state, serial, group);
    }
  }
}

MonoTime NextWarmStartDeadline(const State& state) {
  MonoTime next = MonoTime::Never();
  for (const auto& [serial, group] : state.groups) {
    if (group.warm_start != nullptr) next = std::min(next, group.warm_start->until);
  }
  return next;
}

}  // namespace cadre::supervisor
