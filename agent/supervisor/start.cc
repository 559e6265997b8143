#include "agent/supervisor/start.h"

#include <stdio.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/plumbing.h"
#include "agent/supervisor/process_start.h"
#include "agent/supervisor/standby.h"
#include "agent/supervisor/warm/warm_start.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

// The stream goes on at another path, with what was written so far where the file can be moved.
void MoveStream(CapturedStream& stream, const CapturedStream::Options& options) {
  ScopedFd file;
  const std::string from = stream.path();
  if (!options.path.empty() && options.path != from) {
    MakeDirectoriesFor(options.path);
    const bool moved = !from.empty() && access(options.path.c_str(), F_OK) != 0 &&
                       rename(from.c_str(), options.path.c_str()) == 0;
    // Where neither can be it goes on where it was.
    if (!moved) OpenLog(options.path, file);
  }
  stream.Become(options, std::move(file));
}

// A process that stood by is the group from now on.
void TakeOver(State& state, const StartFrame& start, Group& group) {
  const uint64_t was = std::exchange(group.id, start.group);
  const auto serial = state.by_id.find(was);
  state.by_id[start.group] = serial->second;
  state.by_id.erase(serial);
  group.standby.Reset();
  MoveStream(group.standard_output,
             {start.group, kStdoutStream, start.forward_stdout, start.stdout_path});
  MoveStream(group.standard_error,
             {start.group, kStderrStream, start.forward_stderr, start.stderr_path});
  MoveStream(group.progress, {start.group, kProgressStream, true, ""});
  state.outbox.Send(StartedFrame{group.id, group.pid, was, false, ""});
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
  if (!start.warm.directory.empty() && !start.stands_by) {
    return StartPythonGroup(state, serial, start, group, MonoNow());
  }
  if (!StartProcess(state, serial, start, group)) ReportExit(state, group);
}

}  // namespace cadre::supervisor
