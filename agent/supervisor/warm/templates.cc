// Templates: interpreters that have imported what a program imports, and from which its next
// workers are forked; and the files that such interpreters read.
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
#include <array>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "agent/supervisor/processes/pidfd.h"
#include "agent/supervisor/processes/spawn.h"
#include "agent/supervisor/warm/template_messages.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace cadre::supervisor {
namespace {

// An empty PYTHONPATH is the same as none, while an empty entry in a set one means the working
// directory.
constexpr absl::string_view kPathVariable = "PYTHONPATH=";

absl::string_view NameIn(absl::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

std::string HookDirectory(const StartFrame& start) { return start.warm.directory + "/python"; }

std::vector<std::string> WithHook(const StartFrame& start, const std::string& purpose,
                                  const std::set<absl::string_view>& without) {
  const std::string hook = HookDirectory(start);
  std::vector<std::string> environment;
  bool had_path = false;
  for (const std::string& entry : start.environment) {
    if (without.count(NameIn(entry)) != 0 || NameIn(entry) == "CADRE_WARM_START") continue;
    const bool is_path = absl::StartsWith(entry, kPathVariable);
    had_path = had_path || is_path;
    environment.push_back(
        is_path ? absl::StrCat("PYTHONPATH=", hook, entry.size() > kPathVariable.size() ? ":" : "",
                               absl::string_view(entry).substr(kPathVariable.size()))
                : entry);
  }
  if (!had_path) environment.push_back(absl::StrCat(kPathVariable, hook));
  environment.push_back(absl::StrCat("CADRE_WARM_START=", purpose, ":", had_path ? "1" : "0"));
  return environment;
}

namespace {

constexpr absl::Duration kCheckInterval = absl::Milliseconds(250);
constexpr absl::Duration kIdleCheckInterval = absl::Seconds(2);

constexpr int kSocketBytes = 1 << 20;
constexpr size_t kWorkerDescriptors = 5;
// A worker's marker is written over the template's, which therefore must be longer than any.
constexpr size_t kMarkerRoom = 20;
Spawned SpawnTemplate(State& state, const WarmProgram& program, uint64_t serial, int socket,
                      int own_output) {
  StartFrame start;
  start.argv = program.start.argv;
  start.working_dir = program.start.working_dir;
  const auto& ranks = program.start.warm.rank_variables;
  start.environment = WithHook(program.start, "template", {ranks.begin(), ranks.end()});
  absl::StrAppend(&start.environment.back(), ":", kStandbyFd);
  const ScopedFd cgroup = state.cgroups.Add(serial);
  SpawnRequest request;
  request.start = &start;
  request.marker = absl::StrCat(state.MarkerOf(serial), ".template", std::string(kMarkerRoom, '.'));
  request.stdin_fd = state.null_device.get();
  request.stdout_fd = own_output;
  request.stderr_fd = own_output;
  request.progress_fd = state.null_device.get();
  request.standby_fd = socket;
  request.cgroup_fd = cgroup.get();
  request.descriptors = state.descriptors;
  return Spawn(request);
}

// Starts the program's interpreter, which then waits for SendImports. INTERNAL: the step that
// failed.
absl::StatusOr<Template> StartTemplateProcess(State& state, const WarmProgram& program) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError(absl::StrCat("socketpair: ", strerror(errno)));
  }
  Template made;
  made.socket.Reset(ends[0]);
  const ScopedFd theirs(ends[1]);
  setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof(kSocketBytes));
  WorkerPipe own_output = MakeWorkerPipe();
  made.serial = state.next_serial++;
  Spawned spawned =
      SpawnTemplate(state, program, made.serial, theirs.get(), own_output.write_end.get());
  if (spawned.pid <= 0) {
    return absl::InternalError(absl::StrCat(spawned.failed_step, ": ", strerror(spawned.error)));
  }
  made.pid = spawned.pid;
  made.pidfd = std::move(spawned.pidfd);
  made.own_output = std::move(own_output.read_end);
  return made;
}

// Fails if the order cannot be encoded (template_messages.h), or the process does not accept it.
absl::Status SendImports(const WarmProgram& program, const Template& to) {
  const WarmOptions& options = program.start.warm;
  ASSIGN_OR_RETURN(
      const std::string order,
      Encode(ImportOrder{options.module, options.script, program.learned, options.preload,
                         program.refused, options.rank_variables, program.learner_environment}));
  if (send(to.socket.get(), order.data(), order.size(), MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot send an order to the template");
}

// `go`: the descriptor on which the worker waits before it begins.
absl::Status SendFork(const Template& to, const ForkOrder& order, int standard_input,
                      const OutputChannels& channels, int go) {
  ASSIGN_OR_RETURN(std::string message, Encode(order));
  iovec bytes = {&message[0], message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kWorkerDescriptors * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(kWorkerDescriptors * sizeof(int));
  const std::array<int, kWorkerDescriptors> descriptors = {
      standard_input, channels.standard_output.write_end.get(),
      channels.standard_error.write_end.get(), channels.progress.write_end.get(), go};
  memcpy(CMSG_DATA(rights), descriptors.data(), sizeof(descriptors));
  if (sendmsg(to.socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot send an order to the template");
}

// The last line of the template's own output, as the likely reason for its end.
std::string LastLine(const Template& ended) {
  char text[4096];
  const ssize_t n = read(ended.own_output.get(), text, sizeof(text));
  absl::string_view rest(text, n > 0 ? static_cast<size_t>(n) : 0);
  while (absl::ConsumeSuffix(&rest, "\n")) {
  }
  return std::string(rest.substr(rest.rfind('\n') + 1).substr(0, 300));
}

// The key of a program: equal for all workers that can be forked from the same template.
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

bool IsRunning(const State& state, uint64_t serial) {
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
    if (program.serving.serial == serial || program.next_template.serial == serial) return &program;
  }
  return nullptr;
}

bool HasPendingForks(const State& state, uint64_t template_serial) {
  return template_serial != 0 &&
         std::any_of(state.groups.begin(), state.groups.end(), [&](const auto& group) {
           const auto& warm = group.second.warm_start;
           return warm != nullptr && warm->asked == template_serial && warm->pid == 0 &&
                  warm->failed.empty();
         });
}

void ReportTemplate(State& state, const Template& of, const TemplateReady& ready,
                    std::vector<std::string> notes) {
  state.outbox.Send(TemplateFrame{of.pid, ready.modules, ready.milliseconds, std::move(notes)});
}

// Ends the process and whatever it has forked that belongs to no group. Unanswered orders fail.
void End(State& state, Template& ended, const std::string& why) {
  // A start that waits for a template has `asked` 0, and must not fail with this one.
  CADRE_CHECK(ended.serial != 0, "there is no template to end");
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

// Ends a template, and tells the agent if it was ready.
void EndReady(State& state, Template& ended, const std::string& why) {
  const bool was_ready = ended.ready;
  End(state, ended, why);
  if (was_ready) ReportTemplate(state, Template(), {}, {});
}

// No further template is started for the program.
void GiveUp(State& state, WarmProgram& program, const std::string& why) {
  program.given_up = why;
  ReportTemplate(state, Template(), {}, {absl::StrCat("no warm start: ", why)});
}

void StartTemplate(State& state, WarmProgram& program, MonoTime now) {
  CADRE_CHECK(program.next_template.serial == 0, "a template of the program is importing already");
  if (++program.templates > kMaxTemplates) {
    return GiveUp(state, program,
                  absl::StrCat(kMaxTemplates, " templates were started, which is the limit"));
  }
  absl::StatusOr<Template> started = StartTemplateProcess(state, program);
  if (!started.ok()) return GiveUp(state, program, std::string(started.status().message()));
  Template made = *std::move(started);
  made.learned_bytes = program.learned_bytes;
  made.began = now;
  made.ready_by = now + kReadyLimit;
  state.template_pids.insert(made.pid);
  state.Watch(made.socket.get(), Source::kTemplate, made.serial, EPOLLIN);
  program.next_template = std::move(made);
  const absl::Status sent = SendImports(program, program.next_template);
  if (sent.ok()) return;
  const std::string why(sent.message());
  End(state, program.next_template, why);
  GiveUp(state, program, why);
}

// The new template replaces the old one, once that has answered its orders.
void PromoteNextTemplate(State& state, WarmProgram& program) {
  if (!program.next_template.ready || HasPendingForks(state, program.serving.serial)) return;
  if (program.serving.serial != 0) {
    End(state, program.serving, "a newer template has replaced its template");
  }
  program.serving = std::exchange(program.next_template, Template());
}

// In the format that the agent expects (agent/workers/python/warm_workers.h).
std::vector<std::string> NotesOf(const std::vector<std::string>& reasons) {
  std::vector<std::string> notes;
  for (const std::string& reason : reasons) {
    notes.push_back(absl::StrCat("warm start: not imported beforehand: ", reason));
  }
  return notes;
}

void OnReady(State& state, WarmProgram& program, Template& from, const TemplateReady& ready) {
  from.ready = true;
  program.failed = false;
  from.ready_by = MonoTime::Never();
  from.ready_frame = TemplateFrame{from.pid, ready.modules, ready.milliseconds, {}};
  ReportTemplate(state, from, ready, NotesOf(ready.notes));
  PromoteNextTemplate(state, program);
}

// Starts that wait for the program's template are failed and so started plainly: the next template
// imports from the beginning.
void FailWaitingStarts(State& state, const WarmProgram& program) {
  for (auto& [serial, group] : state.groups) {
    WarmStart* warm = group.warm_start.get();
    if (warm == nullptr || warm->asked != 0 || !warm->failed.empty()) continue;
    if (&state.programs.at(warm->program) == &program) {
      warm->failed = "its template had to be started again";
    }
  }
}

void OnRefused(State& state, WarmProgram& program, Template& from, const TemplateRefused& refused) {
  program.refused.insert(program.refused.end(), refused.names.begin(), refused.names.end());
  program.failed = true;
  ReportTemplate(state, Template(), {}, NotesOf(refused.reasons));
  End(state, from, "the template imported a module that only workers may import");
  FailWaitingStarts(state, program);
  // With workers running, the next one starts only when they import nothing more, since they need
  // the processors.
  program.check_at = MonoNow();
}

WarmStart* FindPendingFork(State& state, uint64_t serial) {
  const auto group = state.groups.find(serial);
  if (group == state.groups.end() || group->second.warm_start == nullptr) return nullptr;
  WarmStart* warm = group->second.warm_start.get();
  return warm->pid == 0 && warm->failed.empty() ? warm : nullptr;
}

// Returns false if the template must be ended, or has been.
bool OnAnswer(State& state, WarmProgram& program, Template& from, const TemplateAnswer& answer) {
  if (const auto* ready = std::get_if<TemplateReady>(&answer)) {
    if (!from.ready) OnReady(state, program, from, *ready);
    return false;  // `from` may have moved; the next message is read in the next turn
  }
  if (const auto* imports = std::get_if<TemplateImports>(&answer)) {
    from.examines = imports->examines;
    if (!from.examines) from.imports_since = MonoNow();
    return true;
  }
  if (const auto* refused = std::get_if<TemplateRefused>(&answer)) {
    OnRefused(state, program, from, *refused);
    return false;
  }
  if (const auto* ended = std::get_if<TemplateEnded>(&answer)) {
    End(state, from, ended->why);
    GiveUp(state, program, ended->why);
    return false;
  }
  if (const auto* forked = std::get_if<WorkerForked>(&answer)) {
    if (WarmStart* warm = FindPendingFork(state, forked->serial)) warm->pid = forked->pid;
    return true;
  }
  const auto& failed = std::get<WorkerNotForked>(answer);
  if (WarmStart* warm = FindPendingFork(state, failed.serial)) warm->failed = failed.why;
  if (!failed.ends) return true;
  EndReady(state, from, failed.why);
  // The next worker to start records its imports anew; running ones have imported the old packages.
  program.learner = 0;
  unlink(program.learned.c_str());
  program.learned_bytes = 0;
  program.refused.clear();
  return false;
}

// The file's modification time on the monotonic clock.
MonoTime ChangedAt(const struct stat& info, MonoTime now) {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  return now + (absl::TimeFromTimespec(info.st_mtim) - absl::TimeFromTimespec(wall));
}

// Reports the import time once the learner (the worker that records its imports) has finished.
void ReportImports(State& state, WarmProgram& program) {
  const auto learner = state.groups.find(program.learner);
  if (!std::exchange(program.learns, false) || learner == state.groups.end()) return;
  program.imports = std::max(absl::ZeroDuration(), program.learned_at - program.began);
  const auto took = absl::ToInt64Milliseconds(program.imports);
  state.outbox.Send(ImportedFrame{learner->second.id, static_cast<uint32_t>(took)});
}

// The file exists while the learner is within an import (sitecustomize.py).
std::string BusyFile(const WarmProgram& program) { return program.learned + ".busy"; }

void ReadImports(const State& state, WarmProgram& program, MonoTime now) {
  struct stat info = {};
  if (stat(program.learned.c_str(), &info) != 0) info.st_size = 0;
  program.learned_bytes = info.st_size;
  if (info.st_size > 0) program.learned_at = std::max(program.began, ChangedAt(info, now));
  // Within an import it counts as importing, however long the list is unchanged.
  if (IsRunning(state, program.learner) && access(BusyFile(program).c_str(), F_OK) == 0) {
    program.learned_at = now;
  }
}

void CheckImports(State& state, WarmProgram& program, MonoTime now) {
  ReadImports(state, program, now);
  const absl::Duration limit = absl::Milliseconds(program.start.warm.quiet_ms);
  const bool quiet = now - program.learned_at >= limit;
  program.check_at = now + (quiet ? kIdleCheckInterval : std::min(kCheckInterval, limit));
  if (!quiet) return;
  ReportImports(state, program);
  if (program.next_template.serial != 0 || !program.given_up.empty()) return;
  const bool serves = program.serving.serial != 0;
  const int64_t more = program.learned_bytes - program.serving.learned_bytes;
  if (serves ? more >= kWorthAnotherBytes : more > 0) StartTemplate(state, program, now);
}

bool HaveAProcessorEach(const WarmProgram& program) {
  cpu_set_t cpus;
  // The call fails if there are more processors than the set can hold.
  return sched_getaffinity(0, sizeof(cpus), &cpus) != 0 ||
         program.most_workers <= static_cast<size_t>(CPU_COUNT(&cpus));
}

// Whether the learner was killed during its imports, or so soon after them that a template would
// still be importing when workers that start now have finished.
bool WasInterrupted(const State& state, const WarmProgram& program, MonoTime now) {
  if (state.groups.at(program.learner).end.signal == 0) return false;
  const bool busy = access(BusyFile(program).c_str(), F_OK) == 0;
  const MonoTime last = busy ? now : program.learned_at;
  return now - last < (last - program.began) / 4;
}

// The learner failed during its imports or soon after them: most likely a restart follows, which
// imports them again.
void StartTemplateAfterFailure(State& state, WarmProgram& program, MonoTime now) {
  program.learns = false;
  if (program.serving.serial != 0 || program.next_template.serial != 0) return;
  ReadImports(state, program, now);
  if (program.learned_bytes == 0) return;
  // If workers share processors, a template that imports alone is ready before they are.
  if (HaveAProcessorEach(program) && WasInterrupted(state, program, now)) return;
  // It may have failed in the midst of its last import, so the time until now counts.
  program.imports = now - program.began;
  StartTemplate(state, program, now);
}

void BeginLearning(uint64_t serial, WarmProgram& program) {
  unlink(BusyFile(program).c_str());
  program.learner = serial;
  program.learns = true;
  program.began = program.learned_at = program.check_at = MonoNow();
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

StartFrame LearningFrame(State& state, uint64_t serial, WarmProgram& program,
                         const StartFrame& start) {
  StartFrame frame = start;
  // `serial` itself may be the learner, if it was to be one after it could not be forked.
  if (IsRunning(state, program.learner) && program.learner != serial) {
    frame.environment = WithHook(start, "plain", {});
    return frame;
  }
  BeginLearning(serial, program);
  // The new learner imports everything, and the file must contain only what this start writes.
  unlink(program.learned.c_str());
  program.learned_bytes = 0;
  program.learner_environment = start.environment;
  frame.environment = WithHook(start, "learn", {});
  absl::StrAppend(&frame.environment.back(), ":", program.learned);
  return frame;
}

bool RequestFork(State& state, uint64_t serial, WarmProgram& program, WarmStart& warm) {
  Template& asked = program.serving;
  CADRE_CHECK(asked.serial != 0 && warm.asked == 0, "template ", asked.serial, " is asked after ",
              warm.asked);
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
  if (!IsRunning(state, program.learner) || program.learner == serial) {
    BeginLearning(serial, program);
    order.learned = program.learned;
  }
  order.environment = WorkerEnvironment(warm.start, order.marker);
  const absl::Status sent =
      SendFork(asked, order, state.null_device.get(), warm.channels, theirs.get());
  if (!sent.ok()) {
    warm.failed = std::string(sent.message());
    return false;
  }
  warm.asked = asked.serial;
  return true;
}

void EndNextTemplate(State& state, WarmProgram& program) {
  if (program.next_template.serial == 0 || program.next_template.ready) return;
  End(state, program.next_template, "workers need the processors");
  program.failed = true;
  --program.templates;
}

void HandleTemplate(State& state, uint64_t serial) {
  static char message[kMaxAnswerBytes];
  for (;;) {
    WarmProgram* program = FindByTemplate(state, serial);
    if (program == nullptr) return;
    Template& from = program->serving.serial == serial ? program->serving : program->next_template;
    const ssize_t n = recv(from.socket.get(), message, sizeof(message), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      const std::string last = LastLine(from);
      const std::string why = absl::StrCat("the template ended", last.empty() ? "" : ": ", last);
      const bool was_ready = from.ready;
      EndReady(state, from, why);
      // A template that was ready, and was then killed, gets a successor.
      if (!was_ready) GiveUp(state, *program, why);
      return;
    }
    const auto answer = ParseAnswer(absl::string_view(message, static_cast<size_t>(n)));
    if (!answer.ok()) {
      const std::string why(answer.status().message());
      EndReady(state, from, why);
      return GiveUp(state, *program, why);
    }
    if (!OnAnswer(state, *program, from, *answer)) return;
  }
}

void AdvanceTemplates(State& state, MonoTime now) {
  for (auto& [number, program] : state.programs) {
    Template& next_template = program.next_template;
    PromoteNextTemplate(state, program);
    if (now >= next_template.ready_by) {
      const std::string why =
          absl::StrCat("the template was not ready after ", absl::FormatDuration(kReadyLimit));
      End(state, next_template, why);
      GiveUp(state, program, why);
    }
    // Not while other workers are still ending, since a template would delay them.
    if (program.given_up.empty() && program.learns && HasFailed(state, program.learner) &&
        CountWorkers(state, number) == 0) {
      StartTemplateAfterFailure(state, program, now);
    }
    if (now >= program.check_at) {
      // Without workers nothing changes.
      program.check_at = MonoTime::Never();
      if (CountWorkers(state, number) > 0) CheckImports(state, program, now);
    }
  }
}

MonoTime NextTemplateDeadline(const State& state) {
  MonoTime next = MonoTime::Never();
  for (const auto& [number, program] : state.programs) {
    next = std::min({next, program.next_template.ready_by, program.check_at});
  }
  return next;
}

void EndTemplates(State& state) {
  for (auto& [number, program] : state.programs) {
    for (Template* each : {&program.serving, &program.next_template}) {
      if (each->serial != 0) End(state, *each, "the supervisor ends");
    }
  }
}

namespace {

constexpr char kHook[] =
#include "agent/supervisor/warm/sitecustomize.py.inc"
    ;
constexpr char kTemplate[] =
#include "agent/supervisor/warm/template.py.inc"
    ;
constexpr char kExamine[] =
#include "agent/supervisor/warm/examine.py.inc"
    ;
constexpr char kForked[] =
#include "agent/supervisor/warm/forked.py.inc"
    ;
constexpr char kOwnRanks[] =
#include "agent/supervisor/warm/own_ranks.py.inc"
    ;
constexpr char kExits[] =
#include "agent/supervisor/warm/exits.py.inc"
    ;
constexpr char kFlightRecorder[] =
#include "agent/supervisor/warm/flight_recorder.py.inc"
    ;

absl::Status Failed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot make ", path, ": ", strerror(errno)));
}

absl::Status Write(const std::string& path, absl::string_view rest) {
  // Atomic: an interpreter that reads now finds the whole file or none.
  const std::string part = path + ".part";
  ScopedFd file(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.ok()) return Failed(part);
  while (!rest.empty()) {
    const ssize_t n = write(file.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed(part);
    rest.remove_prefix(static_cast<size_t>(n));
  }
  return rename(part.c_str(), path.c_str()) == 0 ? absl::OkStatus() : Failed(path);
}

}  // namespace

absl::Status WriteHook(const std::string& directory) {
  const std::string hook = directory + "/sitecustomize.py";
  if (access(hook.c_str(), F_OK) == 0) return absl::OkStatus();
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return Failed(directory);
  RETURN_IF_ERROR(Write(directory + "/template.py", {kTemplate, sizeof(kTemplate) - 1}));
  RETURN_IF_ERROR(Write(directory + "/examine.py", {kExamine, sizeof(kExamine) - 1}));
  RETURN_IF_ERROR(Write(directory + "/forked.py", {kForked, sizeof(kForked) - 1}));
  RETURN_IF_ERROR(Write(directory + "/own_ranks.py", {kOwnRanks, sizeof(kOwnRanks) - 1}));
  RETURN_IF_ERROR(Write(directory + "/exits.py", {kExits, sizeof(kExits) - 1}));
  RETURN_IF_ERROR(
      Write(directory + "/flight_recorder.py", {kFlightRecorder, sizeof(kFlightRecorder) - 1}));
  return Write(hook, {kHook, sizeof(kHook) - 1});
}

}  // namespace cadre::supervisor
