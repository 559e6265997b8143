#include "agent/supervisor/start.h"

#include <errno.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/output/complaints.h"
#include "agent/supervisor/output/plumbing.h"
#include "agent/supervisor/process_start.h"
#include "agent/supervisor/standby.h"
#include "agent/supervisor/warm/warm_start.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

// The stream goes on at another path.
void MoveStream(State& state, CapturedStream& stream, const CapturedStream::Options& options,
                const std::string& path) {
  if (stream.log() != nullptr) {
    stream.log()->MoveTo(path);
  } else if (!path.empty()) {
    stream.Log(std::make_unique<LogFile>(state.files, path));
    stream.log()->Open();
  }
  stream.Become(options);
}

// A process that stood by is the group from now on.
void TakeOver(State& state, const StartFrame& start, Group& group) {
  const uint64_t was = std::exchange(group.id, start.group);
  const auto serial = state.by_id.find(was);
  state.by_id[start.group] = serial->second;
  state.by_id.erase(serial);
  group.standby.Reset();
  MoveStream(state, group.standard_output, {start.group, kStdoutStream, start.forward_stdout},
             start.stdout_path);
  MoveStream(state, group.standard_error, {start.group, kStderrStream, start.forward_stderr},
             start.stderr_path);
  MoveStream(state, group.progress, {start.group, kProgressStream, true}, "");
  state.outbox.Send(StartedFrame{group.id, group.pid, was, false, ""});
}

// Its files are there, or it does without.
void GoOn(State& state, uint64_t serial, Group& group) {
  const std::unique_ptr<ComingStart> coming = std::move(group.coming);
  const StartFrame& start = coming->start;
  if (coming->files->done && coming->files->error != 0) {
    group.end = NotStarted(coming->files->failed, coming->files->error);
    return ReportExit(state, group);
  }
  if (!LayPipes(coming->plumbing)) {
    group.end = NotStarted("pipe", errno);
    return ReportExit(state, group);
  }
  if (!start.warm.directory.empty() && !start.stands_by) {
    if (!start.warm.IsPython()) {
      return StartWithHook(state, serial, start, std::move(coming->plumbing), group);
    }
    return StartPythonGroup(state, serial, start, std::move(coming->plumbing), group, MonoNow());
  }
  if (!StartProcess(state, serial, start, coming->plumbing, group)) ReportExit(state, group);
}

void Advance(State& state, uint64_t serial, Group& group, MonoTime now) {
  if (group.ending.asked) {
    group.coming.reset();
    group.end.signal = SIGKILL;
    return ReportExit(state, group);
  }
  if (!group.coming->files->done) {
    if (now < group.coming->until) return;
    group.coming->files->given_up = true;
    Complain(absl::StrCat("the file system of ", group.coming->start.error_file,
                          " does not answer; the worker starts, its output is kept once it does"));
  }
  GoOn(state, serial, group);
}

}  // namespace

void StartGroup(State& state, const StartFrame& start) {
  if (Group* there = state.Find(start.group); there != nullptr) {
    Complain(absl::StrCat("group ", start.group, " is there already; the order to start it is ",
                          "ignored"));
    return;
  }
  if (!start.stands_by) state.keeping.ended.clear();
  if (!start.assignment.empty()) {
    Group* standby = AssignStandby(state, start.assignment);
    if (standby != nullptr) return TakeOver(state, start, *standby);
  }
  const uint64_t serial = state.next_serial++;
  Group& group = state.groups[serial];
  group.id = start.group;
  state.by_id[start.group] = serial;
  group.coming = PrepareFiles(state.files, start, MonoNow());
  if (group.coming->files->done) GoOn(state, serial, group);
}

void AdvanceStarts(State& state, MonoTime now) {
  for (auto& [serial, group] : state.groups) {
    if (group.coming != nullptr) Advance(state, serial, group, now);
  }
}

MonoTime NextStartDeadline(const State& state) {
  MonoTime next = MonoTime::Never();
  for (const auto& [serial, group] : state.groups) {
    if (group.coming == nullptr) continue;
    next = std::min(next, group.ending.asked ? MonoTime() : group.coming->until);
  }
  return next;
}

}  // namespace cadre::supervisor
