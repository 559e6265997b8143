#include "agent/supervisor/keep.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/supervisor/hold_clock.h"
#include "agent/supervisor/output/complaints.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

constexpr int kBacklog = 8;
// An AdoptFrame is shorter.
constexpr size_t kCandidateBytes = 4096;

ScopedFd ListenAt(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return ScopedFd();
  }
  memcpy(address.sun_path, path.data(), path.size());
  ScopedFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  unlink(path.c_str());
  const mode_t before = umask(0177);
  const bool listens =
      listener.ok() &&
      bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      listen(listener.get(), kBacklog) == 0;
  const int error = errno;
  umask(before);
  errno = error;
  return listens ? std::move(listener) : ScopedFd();
}

bool IsOurs(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == getuid() || peer.uid == 0);
}

void DropCandidate(State& state) {
  Keeping& keeping = state.keeping;
  if (keeping.candidate.socket.ok()) state.Unwatch(keeping.candidate.socket.get());
  keeping.candidate = Agent();
  keeping.candidate_knows_token = false;
}

AdoptedFrame Inventory(const State& state, MonoTime now) {
  AdoptedFrame adopted;
  adopted.id = state.id;
  adopted.alone_ms =
      static_cast<uint32_t>(absl::ToInt64Milliseconds(now - state.keeping.alone_since));
  MonoTime hold_until = MonoTime::Never();
  for (const auto& [serial, group] : state.groups) {
    adopted.groups.push_back(group.id);
    adopted.stopping = adopted.stopping || group.ending.asked;
    hold_until = std::min(hold_until, group.ending.hold_until);
  }
  for (const ExitedFrame& end : state.keeping.ended) adopted.groups.push_back(end.group);
  if (hold_until != MonoTime::Never()) {
    adopted.hold_until_us = HoldSaid(hold_until, state.frames_version).micros();
  }
  return adopted;
}

// The candidate becomes the agent. What it is told twice does it no harm: that the agent before was
// sent something does not mean that it could act on it.
void BecomeAgent(State& state, MonoTime now) {
  Keeping& keeping = state.keeping;
  std::string first = EncodeFrame(
      ReadyFrame{getpid(), state.cgroups.root(), state.cgroups.degraded()}, state.frames_version);
  first += EncodeFrame(Inventory(state, now), state.frames_version);
  for (const auto& [serial, group] : state.groups) {
    if (group.exec_status.ok() || group.coming != nullptr || group.warm_start != nullptr ||
        group.end.exec_errno != 0) {
      continue;
    }
    first += EncodeFrame(StartedFrame{group.id, group.pid, 0, group.warm, group.why_plain},
                         state.frames_version);
  }
  state.Unwatch(keeping.candidate.socket.get());
  state.agent = std::move(keeping.candidate);
  DropCandidate(state);
  keeping.alone_since = keeping.until = MonoTime::Never();
  state.outbox.Attach(state.agent.socket.get(), first);
  for (const auto& [serial, group] : state.groups) {
    if (group.reported) state.outbox.Send(group.end);
  }
  for (const auto& [number, program] : state.programs) {
    if (program.serving.serial != 0) state.outbox.Send(program.serving.ready_frame);
  }
  for (const ExitedFrame& end : keeping.ended) state.outbox.Send(end);
  state.Watch(state.agent.socket.get(), Source::kAgent, 0, uint32_t{EPOLLIN} | EPOLLOUT);
  state.agent.watched_for_room = true;
}

// False: it is nobody who could take over.
bool ReadCandidate(Keeping& keeping, uint32_t version) {
  char chunk[kCandidateBytes];
  const ssize_t n = recv(keeping.candidate.socket.get(), chunk, sizeof(chunk), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  // It has nothing to say before it is answered.
  if (n == 0 || keeping.candidate_knows_token) return false;
  keeping.candidate.reader.Append(absl::string_view(chunk, static_cast<size_t>(n)));
  const auto frame = NextFrame(keeping.candidate.reader, version);
  if (!frame.ok()) return false;
  if (!frame->has_value()) return true;
  const auto* adopt = std::get_if<AdoptFrame>(&**frame);
  keeping.candidate_knows_token = adopt != nullptr && adopt->token == keeping.token;
  return keeping.candidate_knows_token;
}

}  // namespace

void KeepWorkers(State& state, const KeepFrame& keep) {
  Keeping& keeping = state.keeping;
  keeping.time = absl::Milliseconds(keep.keep_ms);
  keeping.token = keep.token;
  if (keep.keep_ms == 0) return StopListening(state);
  // The system may have removed it.
  const bool is_there = access(keep.socket_path.c_str(), F_OK) == 0;
  if (keeping.listener.ok() && keeping.path == keep.socket_path && is_there) return;
  StopListening(state);
  keeping.listener = ListenAt(keep.socket_path);
  if (!keeping.listener.ok()) {
    Complain(absl::StrCat("cannot listen at ", keep.socket_path, ": ", strerror(errno),
                          "; workers end with their launcher"));
    keeping.time = absl::ZeroDuration();
    return;
  }
  keeping.path = keep.socket_path;
  state.Watch(keeping.listener.get(), Source::kListener, 0, EPOLLIN);
}

void AcceptCandidate(State& state) {
  if (!state.keeping.listener.ok()) return;
  ScopedFd fd(
      accept4(state.keeping.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.ok() || !IsOurs(fd.get()) || state.keeping.candidate_knows_token) return;
  DropCandidate(state);
  state.keeping.candidate.socket = std::move(fd);
  state.Watch(state.keeping.candidate.socket.get(), Source::kCandidate, 0, EPOLLIN);
}

void HandleCandidate(State& state) {
  Keeping& keeping = state.keeping;
  if (!keeping.candidate.socket.ok()) return;
  if (!ReadCandidate(keeping, state.frames_version)) return DropCandidate(state);
  if (keeping.candidate_knows_token && !state.agent.socket.ok()) BecomeAgent(state, MonoNow());
}

bool OutliveAgent(State& state, MonoTime now) {
  Keeping& keeping = state.keeping;
  if (keeping.said_goodbye || keeping.time == absl::ZeroDuration()) return false;
  state.Unwatch(state.agent.socket.get());
  state.agent = Agent();
  state.outbox.Detach();
  state.agent_reads = true;
  keeping.alone_since = now;
  keeping.until = now + keeping.time;
  if (IsAbandoned(state, now)) return false;
  if (keeping.candidate_knows_token) BecomeAgent(state, now);
  return true;
}

bool IsAbandoned(const State& state, MonoTime now) {
  return !state.agent.socket.ok() && (state.groups.empty() || now >= state.keeping.until);
}

void StopListening(State& state) {
  Keeping& keeping = state.keeping;
  DropCandidate(state);
  if (!keeping.listener.ok()) return;
  state.Unwatch(keeping.listener.get());
  keeping.listener.Reset();
  unlink(keeping.path.c_str());
  keeping.path.clear();
}

}  // namespace cadre::supervisor
