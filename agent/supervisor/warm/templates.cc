#include "agent/supervisor/warm/templates.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/spawn.h"
#include "agent/supervisor/warm/hook_file.h"
#include "agent/supervisor/warm/template_messages.h"
#include "agent/supervisor/warm/template_process.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(250);
constexpr absl::Duration kLookWhereNothingChanges = absl::Seconds(2);

absl::string_view NameIn(absl::string_view entry) { return entry.substr(0, entry.find('=')); }

// What is the same for all workers that can be forked from one template.
std::string KeyOf(const StartFrame& start) {
  const std::set<absl::string_view> ranks(start.warm.rank_variables.begin(),
                                          start.warm.rank_variables.end());
  std::string key = absl::StrCat(start.working_dir, "\n", absl::StrJoin(start.argv, "\n"), "\n",
                                 absl::StrJoin(start.warm.preload, ","));
  for (const std::string& entry : start.environment) {
    if (ranks.count(NameIn(entry)) == 0) absl::StrAppend(&key, "\n", entry);
  }
  return key;
}

bool Lives(const State& state, uint64_t serial) {
  const auto group = state.groups.find(serial);
  return group != state.groups.end() && !group->second.exited;
}

bool HasFailed(const State& state, uint64_t serial) {
  const auto group = state.groups.find(serial);
  if (group == state.groups.end() || !group->second.exited) return false;
  return group->second.end.exit_code != 0 || group->second.end.signal != 0;
}

size_t CountWorkers(const State& state, uint64_t number) {
  return static_cast<size_t>(std::count_if(
      state.groups.begin(), state.groups.end(),
      [&](const auto& group) { return group.second.program == number && !group.second.exited; }));
}

WarmProgram* FindByTemplate(State& state, uint64_t serial) {
  for (auto& [number, program] : state.programs) {
    if (program.serving.serial == serial || program.coming.serial == serial) return &program;
  }
  return nullptr;
}

bool HasOrders(const State& state, uint64_t template_serial) {
  return template_serial != 0 &&
         std::any_of(state.groups.begin(), state.groups.end(), [&](const auto& group) {
           const auto& warm = group.second.warm_start;
           return warm != nullptr && warm->asked == template_serial && warm->pid == 0 &&
                  warm->failed.empty();
         });
}

void Tell(State& state, const Template& of, const TemplateReady& ready,
          std::vector<std::string> notes) {
  state.outbox.Send(TemplateFrame{of.pid, ready.modules, ready.milliseconds, std::move(notes)});
}

// The process and whatever it has forked that is nobody's. Orders that it has not answered fail.
void End(State& state, Template& ended, const std::string& why) {
  for (auto& [serial, group] : state.groups) {
    WarmStart* warm = group.warm_start.get();
    if (warm != nullptr && warm->asked == ended.serial && warm->pid == 0) warm->failed = why;
  }
  if (ended.socket.ok()) state.Unwatch(ended.socket.get());
  if (ended.pidfd.ok()) SignalPidfd(ended.pidfd.get(), SIGKILL);
  state.cgroups.Kill(ended.serial);
  state.cgroups.Remove(ended.serial);
  state.template_pids.erase(ended.pid);
  ended = Template();
}

// One that could be forked is no more.
void EndReady(State& state, Template& ended, const std::string& why) {
  const bool was_ready = ended.ready;
  End(state, ended, why);
  if (was_ready) Tell(state, Template(), {}, {});
}

// No further template is tried.
void GiveUp(State& state, WarmProgram& program, const std::string& why) {
  program.given_up = why;
  Tell(state, Template(), {}, {absl::StrCat("no warm start: ", why)});
}

void StartTemplate(State& state, WarmProgram& program, MonoTime now) {
  if (++program.templates > kMaxTemplates) {
    return GiveUp(state, program, absl::StrCat(kMaxTemplates, " templates were tried"));
  }
  absl::StatusOr<Template> started = StartTemplateProcess(state, program);
  if (!started.ok()) return GiveUp(state, program, std::string(started.status().message()));
  Template made = *std::move(started);
  made.learned_bytes = program.learned_bytes;
  made.began = now;
  made.ready_by = now + kReadyLimit;
  state.template_pids.insert(made.pid);
  state.Watch(made.socket.get(), Source::kTemplate, made.serial, EPOLLIN);
  program.coming = std::move(made);
  const absl::Status sent = SendImports(program, program.coming);
  if (sent.ok()) return;
  const std::string why(sent.message());
  End(state, program.coming, why);
  GiveUp(state, program, why);
}

// The one that has come serves in place of the old one, which answers first what it was asked.
void TakeOver(State& state, WarmProgram& program) {
  if (!program.coming.ready || HasOrders(state, program.serving.serial)) return;
  if (program.serving.serial != 0) End(state, program.serving, "another template has come");
  program.serving = std::exchange(program.coming, Template());
}

// As the agent knows them (agent/workers/python/warm_notes.h).
std::vector<std::string> NotesOf(const std::vector<std::string>& reasons) {
  std::vector<std::string> notes;
  for (const std::string& reason : reasons) {
    notes.push_back(absl::StrCat("warm start: not imported beforehand: ", reason));
  }
  return notes;
}

void OnReady(State& state, WarmProgram& program, Template& said, const TemplateReady& ready) {
  said.ready = true;
  program.failed = false;
  said.ready_by = MonoTime::Never();
  said.ready_frame = TemplateFrame{said.pid, ready.modules, ready.milliseconds, {}};
  Tell(state, said, ready, NotesOf(ready.notes));
  TakeOver(state, program);
}

// Starts that wait for its template go better without: the next one begins from nothing.
void LeaveWaiting(State& state, const WarmProgram& program) {
  for (auto& [serial, group] : state.groups) {
    WarmStart* warm = group.warm_start.get();
    if (warm == nullptr || warm->asked != 0 || !warm->failed.empty()) continue;
    if (&state.programs.at(warm->program) == &program) warm->failed = "its template begins anew";
  }
}

void OnRefused(State& state, WarmProgram& program, Template& said, const TemplateRefused& refused) {
  program.refused.insert(program.refused.end(), refused.names.begin(), refused.names.end());
  program.failed = true;
  Tell(state, Template(), {}, NotesOf(refused.reasons));
  End(state, said, "the template has imported what it must not");
  LeaveWaiting(state, program);
  // Beside workers only when they import nothing more, which need the processors themselves.
  program.look_at = MonoNow();
}

WarmStart* FindOrder(State& state, uint64_t serial) {
  const auto group = state.groups.find(serial);
  if (group == state.groups.end() || group->second.warm_start == nullptr) return nullptr;
  WarmStart* warm = group->second.warm_start.get();
  return warm->pid == 0 && warm->failed.empty() ? warm : nullptr;
}

// False: the template is to be ended, or has been.
bool Act(State& state, WarmProgram& program, Template& said, const TemplateAnswer& answer) {
  if (const auto* ready = std::get_if<TemplateReady>(&answer)) {
    if (!said.ready) OnReady(state, program, said, *ready);
    return false;  // it may have moved; what it says next is read in the next turn
  }
  if (const auto* imports = std::get_if<TemplateImports>(&answer)) {
    said.looks = imports->looks;
    if (!said.looks) said.imports_since = MonoNow();
    return true;
  }
  if (const auto* refused = std::get_if<TemplateRefused>(&answer)) {
    OnRefused(state, program, said, *refused);
    return false;
  }
  if (const auto* ended = std::get_if<TemplateEnded>(&answer)) {
    End(state, said, ended->why);
    GiveUp(state, program, ended->why);
    return false;
  }
  if (const auto* forked = std::get_if<WorkerForked>(&answer)) {
    if (WarmStart* warm = FindOrder(state, forked->serial)) warm->pid = forked->pid;
    return true;
  }
  const auto& failed = std::get<WorkerNotForked>(answer);
  if (WarmStart* warm = FindOrder(state, failed.serial)) warm->failed = failed.why;
  if (!failed.ends) return true;
  EndReady(state, said, failed.why);
  // All is learned anew, by the next one that starts: who runs has imported what was there before.
  program.learner = 0;
  unlink(program.learned.c_str());
  program.learned_bytes = 0;
  program.refused.clear();
  return false;
}

// The file's time, on the monotonic clock.
MonoTime ChangedAt(const struct stat& info, MonoTime now) {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  return now + (absl::TimeFromTimespec(info.st_mtim) - absl::TimeFromTimespec(wall));
}

// The learner has imported what it needs to begin.
void TellImports(State& state, WarmProgram& program) {
  const auto learner = state.groups.find(program.learner);
  if (!std::exchange(program.learns, false) || learner == state.groups.end()) return;
  program.imports = std::max(absl::ZeroDuration(), program.learned_at - program.began);
  const auto took = absl::ToInt64Milliseconds(program.imports);
  state.outbox.Send(ImportedFrame{learner->second.id, static_cast<uint32_t>(took)});
}

// There as long as the learner is within an import (sitecustomize.py).
std::string BusyFile(const WarmProgram& program) { return program.learned + ".busy"; }

void ReadImports(const State& state, WarmProgram& program, MonoTime now) {
  struct stat info = {};
  if (stat(program.learned.c_str(), &info) != 0) info.st_size = 0;
  program.learned_bytes = info.st_size;
  if (info.st_size > 0) program.learned_at = std::max(program.began, ChangedAt(info, now));
  // However long it is quiet.
  if (Lives(state, program.learner) && access(BusyFile(program).c_str(), F_OK) == 0) {
    program.learned_at = now;
  }
}

void LookAtImports(State& state, WarmProgram& program, MonoTime now) {
  ReadImports(state, program, now);
  const absl::Duration limit = absl::Milliseconds(program.start.warm.quiet_ms);
  const bool quiet = now - program.learned_at >= limit;
  program.look_at = now + (quiet ? kLookWhereNothingChanges : std::min(kLook, limit));
  if (!quiet) return;
  TellImports(state, program);
  if (program.coming.serial != 0 || !program.given_up.empty()) return;
  const bool serves = program.serving.serial != 0;
  const int64_t more = program.learned_bytes - program.serving.learned_bytes;
  if (serves ? more >= kWorthAnotherBytes : more > 0) StartTemplate(state, program, now);
}

bool HaveAProcessorEach(const WarmProgram& program) {
  cpu_set_t cpus;
  // It fails where there are more than fit.
  return sched_getaffinity(0, sizeof(cpus), &cpus) != 0 ||
         program.most_workers <= static_cast<size_t>(CPU_COUNT(&cpus));
}

// The learner was killed amid its imports, or so soon after them that a template would still import
// when workers that start at once import nothing more.
bool WasInterrupted(const State& state, const WarmProgram& program, MonoTime now) {
  if (state.groups.at(program.learner).end.signal == 0) return false;
  const bool busy = access(BusyFile(program).c_str(), F_OK) == 0;
  const MonoTime last = busy ? now : program.learned_at;
  return now - last < (last - program.began) / 4;
}

// The learner failed soon after its imports, or amid them: what follows is most likely a restart,
// which imports them again.
void BeginAfterFailure(State& state, WarmProgram& program, MonoTime now) {
  program.learns = false;
  if (program.serving.serial != 0 || program.coming.serial != 0) return;
  ReadImports(state, program, now);
  if (program.learned_bytes == 0) return;
  // Where they have not, a template that imports alone is ready before they are.
  if (HaveAProcessorEach(program) && WasInterrupted(state, program, now)) return;
  // It may have ended in the midst of the last one.
  program.imports = now - program.began;
  StartTemplate(state, program, now);
}

void BeginLearning(uint64_t serial, WarmProgram& program) {
  unlink(BusyFile(program).c_str());
  program.learner = serial;
  program.learns = true;
  program.began = program.learned_at = program.look_at = MonoNow();
}

}  // namespace

uint64_t ProgramOf(State& state, const StartFrame& start, std::string* why) {
  const absl::Status written = WriteHook(HookDirectory(start));
  if (!written.ok()) {
    *why = std::string(written.message());
    return 0;
  }
  const std::string key = KeyOf(start);
  for (auto& [number, program] : state.programs) {
    if (program.key != key) continue;
    program.start = start;
    program.most_workers = std::max(program.most_workers, CountWorkers(state, number) + 1);
    return number;
  }
  if (state.programs.size() >= kMaxPrograms) {
    *why = absl::StrCat("there are templates of ", kMaxPrograms, " other command lines already");
    return 0;
  }
  const uint64_t number = state.next_serial++;
  WarmProgram& program = state.programs[number];
  program.key = key;
  program.start = start;
  program.learned = absl::StrCat(HookDirectory(start), "/imports-", state.id, "-", number);
  return number;
}

StartFrame Learning(State& state, uint64_t serial, WarmProgram& program, const StartFrame& start) {
  StartFrame frame = start;
  // It may have been to learn as a process that could not be forked.
  if (Lives(state, program.learner) && program.learner != serial) {
    frame.environment = WithHook(start, "plain", {});
    return frame;
  }
  BeginLearning(serial, program);
  // It imports everything, and what the file says of a start is to be of this one.
  unlink(program.learned.c_str());
  program.learned_bytes = 0;
  program.learner_environment = start.environment;
  frame.environment = WithHook(start, "learn", {});
  absl::StrAppend(&frame.environment.back(), ":", program.learned);
  return frame;
}

bool AskForFork(State& state, uint64_t serial, WarmProgram& program, WarmStart& warm) {
  Template& asked = program.serving;
  int go[2];
  if (pipe2(go, O_CLOEXEC) != 0) {
    warm.failed = absl::StrCat("pipe: ", strerror(errno));
    return false;
  }
  const ScopedFd theirs(go[0]);
  warm.go.Reset(go[1]);
  ForkOrder order;
  order.serial = serial;
  order.marker = state.MarkerOf(serial);
  order.directory = warm.start.working_dir;
  if (!Lives(state, program.learner) || program.learner == serial) {
    BeginLearning(serial, program);
    order.learned = program.learned;
  }
  order.environment = WorkerEnvironment(warm.start, order.marker);
  const absl::Status sent =
      SendFork(asked, order, state.null_device.get(), warm.plumbing, theirs.get());
  if (!sent.ok()) {
    warm.failed = std::string(sent.message());
    return false;
  }
  warm.asked = asked.serial;
  return true;
}

void EndComing(State& state, WarmProgram& program) {
  if (program.coming.serial == 0 || program.coming.ready) return;
  End(state, program.coming, "workers need the processors");
  program.failed = true;
  --program.templates;
}

void HandleTemplate(State& state, uint64_t serial) {
  static char message[kMaxAnswerBytes];
  for (;;) {
    WarmProgram* program = FindByTemplate(state, serial);
    if (program == nullptr) return;
    Template& said = program->serving.serial == serial ? program->serving : program->coming;
    const ssize_t n = recv(said.socket.get(), message, sizeof(message), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      const std::string last = LastLine(said);
      const std::string why = absl::StrCat("the template ended", last.empty() ? "" : ": ", last);
      const bool was_ready = said.ready;
      EndReady(state, said, why);
      // One that somebody killed gets a successor.
      if (!was_ready) GiveUp(state, *program, why);
      return;
    }
    const auto answer = ParseAnswer(absl::string_view(message, static_cast<size_t>(n)));
    if (!answer.ok()) {
      const std::string why(answer.status().message());
      EndReady(state, said, why);
      return GiveUp(state, *program, why);
    }
    if (!Act(state, *program, said, *answer)) return;
  }
}

void AdvanceTemplates(State& state, MonoTime now) {
  for (auto& [number, program] : state.programs) {
    Template& coming = program.coming;
    TakeOver(state, program);
    if (now >= coming.ready_by) {
      const std::string why =
          absl::StrCat("the template was not ready after ", absl::FormatDuration(kReadyLimit));
      End(state, coming, why);
      GiveUp(state, program, why);
    }
    // Not while others are still ending, which a template beside them would hold up.
    if (program.given_up.empty() && program.learns && HasFailed(state, program.learner) &&
        CountWorkers(state, number) == 0) {
      BeginAfterFailure(state, program, now);
    }
    if (now >= program.look_at) {
      // Without workers nothing changes.
      program.look_at = MonoTime::Never();
      if (CountWorkers(state, number) > 0) LookAtImports(state, program, now);
    }
  }
}

MonoTime NextTemplateDeadline(const State& state) {
  MonoTime next = MonoTime::Never();
  for (const auto& [number, program] : state.programs) {
    next = std::min({next, program.coming.ready_by, program.look_at});
  }
  return next;
}

void EndTemplates(State& state) {
  for (auto& [number, program] : state.programs) {
    for (Template* each : {&program.serving, &program.coming}) {
      if (each->serial != 0) End(state, *each, "the supervisor ends");
    }
  }
}

}  // namespace cadre::supervisor
