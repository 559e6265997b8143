#include "agent/supervisor/agent_loss.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/supervisor/output.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {
namespace {

constexpr int kBacklog = 8;
// An AdoptFrame is shorter than this.
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
  Adoption& adoption = state.adoption;
  if (adoption.candidate.socket.ok()) state.Unwatch(adoption.candidate.socket.get());
  adoption.candidate = Agent();
  adoption.candidate_authenticated = false;
}

AdoptedFrame Inventory(const State& state, MonoTime now) {
  AdoptedFrame adopted;
  adopted.id = state.id;
  adopted.alone_ms =
      static_cast<uint32_t>(absl::ToInt64Milliseconds(now - state.adoption.alone_since));
  MonoTime hold_until = MonoTime::Never();
  for (const auto& [serial, group] : state.groups) {
    adopted.groups.push_back(group.id);
    adopted.stopping = adopted.stopping || group.stop_state.requested;
    hold_until = std::min(hold_until, group.stop_state.hold_until);
  }
  for (const ExitedFrame& end : state.adoption.ended) adopted.groups.push_back(end.group);
  if (hold_until != MonoTime::Never()) {
    adopted.hold_until_us = hold_until.micros();
  }
  return adopted;
}

// The candidate becomes the agent. Frames that the earlier agent was sent are repeated, which is
// harmless: it may not have acted on them.
void BecomeAgent(State& state, MonoTime now) {
  Adoption& adoption = state.adoption;
  CADRE_CHECK(adoption.candidate_authenticated && adoption.candidate.socket.ok(),
              "an agent without the token takes over");
  CADRE_CHECK(!state.agent.socket.ok() && adoption.alone_since != MonoTime::Never(),
              "an agent takes over from one that lives");
  std::string first = EncodeFrame(
      ReadyFrame{getpid(), state.cgroups.root(), state.cgroups.degraded()}, state.frames_version);
  first += EncodeFrame(Inventory(state, now), state.frames_version);
  for (const auto& [serial, group] : state.groups) {
    if (group.exec_status.ok() || group.pending_start != nullptr || group.warm_start != nullptr ||
        group.end.exec_errno != 0) {
      continue;
    }
    first += EncodeFrame(StartedFrame{group.id, group.pid, 0, group.warm, group.why_plain},
                         state.frames_version);
  }
  state.Unwatch(adoption.candidate.socket.get());
  state.agent = std::move(adoption.candidate);
  DropCandidate(state);
  adoption.alone_since = adoption.until = MonoTime::Never();
  state.outbox.Attach(state.agent.socket.get(), first);
  for (const auto& [serial, group] : state.groups) {
    if (group.reported) state.outbox.Send(group.end);
  }
  for (const auto& [number, program] : state.programs) {
    if (program.serving.serial != 0) state.outbox.Send(program.serving.ready_frame);
  }
  for (const ExitedFrame& end : adoption.ended) state.outbox.Send(end);
  state.Watch(state.agent.socket.get(), Source::kAgent, 0, uint32_t{EPOLLIN} | EPOLLOUT);
  state.agent.watched_for_room = true;
}

// Returns false if the candidate must be dropped.
bool ReadCandidate(Adoption& adoption, uint32_t version) {
  char chunk[kCandidateBytes];
  const ssize_t n = recv(adoption.candidate.socket.get(), chunk, sizeof(chunk), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  // The candidate must not send anything more before it is answered.
  if (n == 0 || adoption.candidate_authenticated) return false;
  adoption.candidate.reader.Append(absl::string_view(chunk, static_cast<size_t>(n)));
  const auto frame = NextFrame(adoption.candidate.reader, version);
  if (!frame.ok()) return false;
  if (!frame->has_value()) return true;
  const auto* adopt = std::get_if<AdoptFrame>(&**frame);
  adoption.candidate_authenticated = adopt != nullptr && adopt->token == adoption.token;
  return adoption.candidate_authenticated;
}

}  // namespace

void AllowAdoption(State& state, const KeepFrame& keep) {
  Adoption& adoption = state.adoption;
  adoption.keep_time = absl::Milliseconds(keep.keep_ms);
  adoption.token = keep.token;
  if (keep.keep_ms == 0) return StopListening(state);
  // The system may have removed the socket.
  const bool is_there = access(keep.socket_path.c_str(), F_OK) == 0;
  if (adoption.listener.ok() && adoption.path == keep.socket_path && is_there) return;
  StopListening(state);
  adoption.listener = ListenAt(keep.socket_path);
  if (!adoption.listener.ok()) {
    Warn(absl::StrCat("cannot listen at ", keep.socket_path, ": ", strerror(errno),
                      "; the workers will be killed if their launcher dies"));
    adoption.keep_time = absl::ZeroDuration();
    return;
  }
  adoption.path = keep.socket_path;
  state.Watch(adoption.listener.get(), Source::kListener, 0, EPOLLIN);
}

void AcceptCandidate(State& state) {
  if (!state.adoption.listener.ok()) return;
  ScopedFd fd(
      accept4(state.adoption.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.ok() || !IsOurs(fd.get()) || state.adoption.candidate_authenticated) return;
  DropCandidate(state);
  state.adoption.candidate.socket = std::move(fd);
  state.Watch(state.adoption.candidate.socket.get(), Source::kCandidate, 0, EPOLLIN);
}

void HandleCandidate(State& state) {
  Adoption& adoption = state.adoption;
  if (!adoption.candidate.socket.ok()) return;
  if (!ReadCandidate(adoption, state.frames_version)) return DropCandidate(state);
  if (adoption.candidate_authenticated && !state.agent.socket.ok()) BecomeAgent(state, MonoNow());
}

bool OnAgentLost(State& state, MonoTime now) {
  Adoption& adoption = state.adoption;
  if (adoption.said_goodbye || adoption.keep_time == absl::ZeroDuration()) return false;
  state.Unwatch(state.agent.socket.get());
  state.agent = Agent();
  state.outbox.Detach();
  state.agent_reads = true;
  adoption.alone_since = now;
  adoption.until = now + adoption.keep_time;
  if (IsAbandoned(state, now)) return false;
  if (adoption.candidate_authenticated) BecomeAgent(state, now);
  return true;
}

bool IsAbandoned(const State& state, MonoTime now) {
  return !state.agent.socket.ok() && (state.groups.empty() || now >= state.adoption.until);
}

void StopListening(State& state) {
  Adoption& adoption = state.adoption;
  DropCandidate(state);
  if (!adoption.listener.ok()) return;
  state.Unwatch(adoption.listener.get());
  adoption.listener.Reset();
  unlink(adoption.path.c_str());
  adoption.path.clear();
}

}  // namespace cadre::supervisor
