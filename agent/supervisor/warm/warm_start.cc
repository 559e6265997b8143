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
#include "agent/supervisor/output.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/spawn.h"
#include "agent/supervisor/start.h"
#include "agent/supervisor/warm/templates.h"

namespace cadre::supervisor {
namespace {

// The time from the start of a template until its first message.
constexpr absl::Duration kFirstMessageLimit = absl::Seconds(1);

bool JoinCgroup(const ScopedFd& cgroup, pid_t pid) {
  const ScopedFd procs(openat(cgroup.get(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
  const std::string text = absl::StrCat(pid);
  return write(procs.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Sets up a forked process as Spawn would before exec. Returns an empty string, or why it failed.
std::string ConfigureForked(State& state, uint64_t serial, const StartFrame& start,
                            Spawned& process) {
  siginfo_t info = {};
  const auto pid = static_cast<id_t>(process.pid);
  // The pid may be reused by another process, but not by another child of ours.
  if (!process.pidfd.ok() || waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != 0) {
    return "the forked process ended at once";
  }
  const ScopedFd cgroup = state.cgroups.Add(serial);
  process.in_cgroup = cgroup.ok() && JoinCgroup(cgroup, process.pid);
  // Otherwise the process would be killed with the template's cgroup.
  if (cgroup.ok() && !process.in_cgroup) return "the forked process cannot be put into its cgroup";
  const std::optional<CpuMask> cpus = CpuMask::Of(start.cpus);
  if (!cpus.has_value()) return "its CPU binding has a number that is too large";
  if (cpus->set() != nullptr && sched_setaffinity(process.pid, cpus->bytes(), cpus->set()) != 0) {
    return "the forked process cannot be bound to its CPUs";
  }
  return "";
}

void StartPlainly(State& state, uint64_t serial, Group& group, const StartFrame& start,
                  OutputChannels& channels, const std::string& why) {
  group.why_plain = why;
  WarmProgram& program = state.programs.at(group.program);
  EndNextTemplate(state, program);
  const StartFrame frame = LearningFrame(state, serial, program, start);
  if (!StartProcess(state, serial, frame, channels, group)) ReportExit(state, group);
}

// The group was stopped before its process existed.
void ReportStoppedBeforeStart(State& state, Group& group) {
  group.end.signal = SIGKILL;
  ReportExit(state, group);
}

void ReleaseForked(State& state, uint64_t serial, Group& group) {
  const std::unique_ptr<WarmStart> warm = std::move(group.warm_start);
  Spawned process;
  process.pid = warm->pid;
  process.pidfd.Reset(OpenPidfd(warm->pid));
  const std::string failed = ConfigureForked(state, serial, warm->start, process);
  if (!failed.empty()) {
    if (process.pidfd.ok()) SignalPidfd(process.pidfd.get(), SIGKILL);
    if (group.stop_state.requested) return ReportStoppedBeforeStart(state, group);
    return StartPlainly(state, serial, group, warm->start, warm->channels, failed);
  }
  AttachProcess(state, serial, warm->start, warm->channels, std::move(process), group);
  group.warm = true;
  state.outbox.Send(StartedFrame{group.id, group.pid, 0, true, ""});
  if (group.stop_state.requested) {
    SignalPidfd(group.pidfd.get(), SIGKILL);
  } else if (write(warm->go.get(), "g", 1) != 1) {
    Warn(absl::StrCat("the forked worker, pid ", group.pid, ", ended before it began to run"));
  }
}

bool FailWarmStart(State& state, uint64_t serial, Group& group) {
  const std::unique_ptr<WarmStart> warm = std::move(group.warm_start);
  if (group.stop_state.requested) {
    ReportStoppedBeforeStart(state, group);
  } else {
    StartPlainly(state, serial, group, warm->start, warm->channels, warm->failed);
  }
  return true;
}

std::string WhyNoTemplate(const State& state, const WarmProgram& program) {
  if (!program.given_up.empty()) return program.given_up;
  if (program.next_template.serial != 0) return "its template is still importing";
  if (program.failed) return "its template was not ready";
  if (program.templates > 0) return "its template has ended";
  const auto learner = state.groups.find(program.learner);
  const bool is_first =
      program.learner == 0 || (learner != state.groups.end() && !learner->second.exited);
  return is_first ? "its first start" : "its first worker ended before its imports were known";
}

// Until when a start that came at `requested_at` should wait for a template that is still
// importing: it imports what a plain start would, began earlier, and does not compete with other
// workers. The wait is never longer than a plain start. There is none if the template has to
// examine packages first, or after a wait for another template was in vain.
MonoTime WorthWaitingUntil(const WarmProgram& program, MonoTime requested_at) {
  const Template& next_template = program.next_template;
  if (!program.given_up.empty() || program.failed || next_template.serial == 0) return requested_at;
  if (next_template.examines && next_template.imports_since == MonoTime::Never()) {
    return requested_at;
  }
  const MonoTime ready = next_template.imports_since == MonoTime::Never()
                             ? next_template.began + kFirstMessageLimit
                             : next_template.imports_since + program.imports;
  return std::min(requested_at + program.imports, ready);
}

// For a start that waits for a template.
void RequestForkOnceReady(State& state, uint64_t serial, WarmStart& warm, MonoTime now) {
  WarmProgram& program = state.programs.at(warm.program);
  if (program.serving.serial != 0) {
    warm.until = now + kForkLimit;
    RequestFork(state, serial, program, warm);
    return;
  }
  warm.until = WorthWaitingUntil(program, warm.requested_at);
  if (now < warm.until) return;
  warm.failed = WhyNoTemplate(state, program);
}

}  // namespace

void StartWithHook(State& state, uint64_t serial, const StartFrame& start, OutputChannels channels,
                   Group& group) {
  StartFrame frame = start;
  // Without the hook there are no stack dumps, but the program can still be started.
  if (WriteHook(HookDirectory(start)).ok()) frame.environment = WithHook(start, "plain", {});
  if (!StartProcess(state, serial, frame, channels, group)) ReportExit(state, group);
}

void StartPythonGroup(State& state, uint64_t serial, const StartFrame& start,
                      OutputChannels channels, Group& group, MonoTime now) {
  auto warm = std::make_unique<WarmStart>();
  warm->channels = std::move(channels);
  group.program = ProgramOf(state, start, &group.why_plain);
  if (group.program == 0) {
    if (!StartProcess(state, serial, start, warm->channels, group)) ReportExit(state, group);
    return;
  }
  WarmProgram& program = state.programs.at(group.program);
  warm->requested_at = now;
  warm->until = program.serving.serial != 0 ? now + kForkLimit : WorthWaitingUntil(program, now);
  if (warm->until <= now) {
    return StartPlainly(state, serial, group, start, warm->channels, WhyNoTemplate(state, program));
  }
  warm->start = start;
  warm->program = group.program;
  group.warm_start = std::move(warm);
  if (program.serving.serial != 0) RequestFork(state, serial, program, *group.warm_start);
}

void AdvanceWarmStarts(State& state, MonoTime now) {
  for (auto& [serial, group] : state.groups) {
    WarmStart* warm = group.warm_start.get();
    if (warm == nullptr) continue;
    if (warm->pid != 0) {
      ReleaseForked(state, serial, group);
      continue;
    }
    if (warm->failed.empty() && warm->asked == 0) RequestForkOnceReady(state, serial, *warm, now);
    if (warm->failed.empty() && now >= warm->until) warm->failed = "its template does not answer";
    if (!warm->failed.empty() || (warm->asked == 0 && group.stop_state.requested)) {
      FailWarmStart(state, serial, group);
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
