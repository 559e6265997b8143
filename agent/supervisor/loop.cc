#include "agent/supervisor/loop.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/local/agent_cleanup.h"
#include "agent/supervisor/agent_loss.h"
#include "agent/supervisor/groups.h"
#include "agent/supervisor/output.h"
#include "agent/supervisor/start.h"
#include "agent/supervisor/stop.h"
#include "agent/supervisor/warm/templates.h"
#include "agent/supervisor/warm/warm_start.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

constexpr size_t kAgentChunkBytes = 64 << 10;
constexpr int kMaxEvents = 64;
// The time from the end of a killed agent's socket to the end of its process.
constexpr absl::Duration kAgentExitTimeout = absl::Milliseconds(200);

// Executes the agent's frames. Returns false if the agent is gone, or sent an invalid frame, which
// counts as gone.
bool HandleAgent(State& state) {
  static char chunk[kAgentChunkBytes];
  const ssize_t n = recv(state.agent.socket.get(), chunk, sizeof(chunk), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  state.agent.reader.Append(absl::string_view(chunk, static_cast<size_t>(n)));
  for (;;) {
    auto next = NextFrame(state.agent.reader, state.frames_version);
    if (!next.ok()) {
      Warn(absl::StrCat("the agent sent an invalid frame: ", next.status().message()));
      return false;
    }
    if (!next->has_value()) return true;
    const Frame& frame = **next;
    if (const auto* start = std::get_if<StartFrame>(&frame)) {
      StartGroup(state, *start);
    } else if (const auto* stop = std::get_if<StopFrame>(&frame)) {
      StopGroup(state, *stop, MonoNow());
    } else if (const auto* signal = std::get_if<SignalFrame>(&frame)) {
      SignalGroup(state, *signal);
    } else if (const auto* hold = std::get_if<HoldFrame>(&frame)) {
      HoldGroup(state, *hold);
    } else if (const auto* keep = std::get_if<KeepFrame>(&frame)) {
      AllowAdoption(state, *keep);
    } else if (const auto* reading = std::get_if<ReadingFrame>(&frame)) {
      state.agent_reads = reading->reads;
    } else if (const auto* directory = std::get_if<DirectoryFrame>(&frame)) {
      state.agent_directory = directory->path;
    } else if (std::holds_alternative<GoodbyeFrame>(frame)) {
      state.adoption.said_goodbye = true;
    }
  }
}

// Writes what the agent's socket accepts, and polls it for room if that is not all. Returns false
// if the agent is gone.
bool FlushToAgent(State& state) {
  if (!state.agent.socket.ok()) return true;
  if (!state.outbox.Flush()) {
    // The agent may have sent Goodbye before it went.
    shutdown(state.agent.socket.get(), SHUT_RDWR);
    while (HandleAgent(state)) {
    }
    return false;
  }
  if (state.agent.watched_for_room == state.outbox.empty()) {
    state.agent.watched_for_room = !state.agent.watched_for_room;
    const uint32_t wanted =
        state.agent.watched_for_room ? uint32_t{EPOLLIN} | EPOLLOUT : uint32_t{EPOLLIN};
    state.Rewatch(state.agent.socket.get(), Source::kAgent, 0, wanted);
  }
  return true;
}

// Whether the worker must wait because its file, or the reader of the agent's output, is slower
// than its output. If these are stalled it need not wait, and output is dropped.
bool MustWait(State& state, const CapturedStream& stream, MonoTime now) {
  if (stream.forwarded() && !state.agent_reads) return true;
  const bool on_file =
      stream.log() != nullptr && !state.files.HasRoom(kMaxReadBytes) && !state.files.IsHung(now);
  return on_file || (stream.forwarded() && state.outbox.IsBackedUp(now));
}

void ResumeStreams(State& state, MonoTime now) {
  for (auto& [serial, group] : state.groups) {
    for (const auto& [stream, source] : {std::pair(&group.standard_output, Source::kStdout),
                                         std::pair(&group.standard_error, Source::kStderr)}) {
      if (!stream->paused || MustWait(state, *stream, now)) continue;
      stream->paused = false;
      state.Watch(stream->fd(), source, serial, EPOLLIN);
    }
  }
}

// A paused stream is resumed when the file thread, or the agent, is given up because it does not
// keep up. A stream that waits for a ReadingFrame waits without a limit.
MonoTime NextResumption(const State& state, MonoTime now) {
  const bool waits = std::any_of(state.groups.begin(), state.groups.end(), [](const auto& group) {
    return group.second.standard_output.paused || group.second.standard_error.paused;
  });
  if (!waits) return MonoTime::Never();
  // A file thread or agent that has already been given up delays no stream, and one without a
  // backlog needs no deadline.
  const MonoTime agent =
      state.outbox.IsBackedUp(now) ? state.outbox.StalledAt() : MonoTime::Never();
  return std::min(agent, state.files.IsHung(now) ? MonoTime::Never() : state.files.HungAt());
}

void HandleStream(State& state, uint64_t serial, CapturedStream Group::*stream) {
  const auto found = state.groups.find(serial);
  if (found == state.groups.end() || !(found->second.*stream).open()) return;
  CapturedStream& captured = found->second.*stream;
  if (stream != &Group::progress && MustWait(state, captured, MonoNow())) {
    captured.paused = true;
    return state.Unwatch(captured.fd());
  }
  if (captured.ReadOnce(state.outbox)) return;
  captured.FlushRest(state.outbox);
  CloseStream(state, captured);
}

void HandleSignals(State& state, int signal_fd) {
  signalfd_siginfo info;
  while (read(signal_fd, &info, sizeof(info)) > 0) {
  }
  ReapAll(state);
}

// The order of the sources within one turn does not matter: each handler checks the current state,
// and does nothing for a group that is gone.
bool Dispatch(State& state, int signal_fd, const epoll_event& event) {
  const uint64_t serial = event.data.u64 >> 8;
  switch (static_cast<Source>(event.data.u64 & 0xff)) {
    case Source::kAgent:
      if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return true;
      return HandleAgent(state);
    case Source::kListener:
      AcceptCandidate(state);
      return true;
    case Source::kCandidate:
      HandleCandidate(state);
      return true;
    case Source::kSignals:
      HandleSignals(state, signal_fd);
      return true;
    case Source::kExit:
      HandleExit(state, serial);
      return true;
    case Source::kExec:
      HandleExecStatus(state, serial);
      return true;
    case Source::kStdout:
      HandleStream(state, serial, &Group::standard_output);
      return true;
    case Source::kStderr:
      HandleStream(state, serial, &Group::standard_error);
      return true;
    case Source::kProgress:
      HandleStream(state, serial, &Group::progress);
      return true;
    case Source::kTemplate:
      HandleTemplate(state, serial);
      return true;
    case Source::kFiles:
      state.files.ClearReadable();
      return true;
    case Source::kHold:
      // Makes SetHoldTimer set the timer again.
      state.hold_armed = MonoTime();
      return true;  // AdvanceGroups acts on it
    case Source::kCgroup:
      return true;  // AdvanceGroups reads it
  }
  return true;
}

int TimeoutMs(const State& state) {
  const MonoTime deadline = std::min({NextDeadline(state), NextStartDeadline(state),
                                      NextExitDeadline(state), NextResumption(state, MonoNow()),
                                      NextWarmStartDeadline(state), NextTemplateDeadline(state)});
  if (deadline == MonoTime::Never()) return -1;
  const int64_t us = std::max<int64_t>(0, deadline.micros() - MonoNow().micros());
  // Rounded up, because waking early would only spin.
  return static_cast<int>(std::min<int64_t>((us + 999) / 1000, std::numeric_limits<int>::max()));
}

}  // namespace

absl::Status RunLoop(State& state) {
  state.epoll.Reset(epoll_create1(EPOLL_CLOEXEC));
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ScopedFd signals(signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  state.hold_timer.Reset(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!state.epoll.ok() || !signals.ok() || !state.hold_timer.ok()) {
    return absl::InternalError(absl::StrCat("epoll, signalfd or timerfd: ", strerror(errno)));
  }
  state.Watch(state.agent.socket.get(), Source::kAgent, 0, EPOLLIN);
  state.Watch(signals.get(), Source::kSignals, 0, EPOLLIN);
  state.Watch(state.files.fd(), Source::kFiles, 0, EPOLLIN);
  state.Watch(state.hold_timer.get(), Source::kHold, 0, EPOLLIN);

  for (bool goes_on = true; goes_on;) {
    epoll_event events[kMaxEvents];
    SetHoldTimer(state);
    const int n = epoll_wait(state.epoll.get(), events, kMaxEvents, TimeoutMs(state));
    bool agent_lost = false;
    for (int i = 0; i < n && !agent_lost; ++i) {
      agent_lost = !Dispatch(state, signals.get(), events[i]);
    }
    if (!agent_lost) {
      AdvanceStarts(state, MonoNow());
      AdvanceExits(state, MonoNow());
      AdvanceTemplates(state, MonoNow());
      AdvanceWarmStarts(state, MonoNow());
      AdvanceGroups(state, MonoNow());
    }
    agent_lost = agent_lost || !FlushToAgent(state);
    if (!agent_lost) ResumeStreams(state, MonoNow());
    goes_on = agent_lost ? OnAgentLost(state, MonoNow()) : !IsAbandoned(state, MonoNow());
  }
  StopListening(state);
  EndTemplates(state);
  const absl::Status status = ShutDown(state);
  // A killed agent leaves its directory behind, and there may be no next agent on this node.
  if (!state.adoption.said_goodbye && !state.agent_directory.empty()) {
    agent::RemoveOnceAbandoned(state.agent_directory, kAgentExitTimeout);
  }
  return status;
}

}  // namespace cadre::supervisor
