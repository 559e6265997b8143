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
#include "base/clock.h"

namespace cadre {
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
  if (keeping.candidate.ok()) state.Unwatch(keeping.candidate.get());
  keeping.candidate.Reset();
  keeping.candidate_reader = frames::FrameReader(kMaxFrameBytes);
  keeping.candidate_knows_token = false;
}

uint32_t WorkersOf(const State& state, const Generation& generation) {
  size_t count = generation.workers.size();
  for (const auto& [local_rank, exit] : generation.exits) {
    // One that could not even be forked is in no slot.
    count += std::none_of(generation.workers.begin(), generation.workers.end(), [&](uint64_t slot) {
      return state.workers.at(slot).local_rank == local_rank;
    });
  }
  return static_cast<uint32_t>(count);
}

AdoptedFrame Inventory(const State& state, MonoTime now) {
  AdoptedFrame adopted;
  adopted.id = state.id;
  adopted.alone_ms =
      static_cast<uint32_t>(absl::ToInt64Milliseconds(now - state.keeping.alone_since));
  if (state.generations.empty()) return adopted;
  const auto& [number, generation] = *state.generations.rbegin();
  adopted.generation = number;
  adopted.workers = WorkersOf(state, generation);
  if (generation.hold_until != MonoTime::Never()) {
    adopted.hold_until_us = generation.hold_until.micros();
  }
  return adopted;
}

// The candidate becomes the agent. What it is told twice does it no harm: that the agent before was
// sent something does not mean that it could act on it.
void BecomeAgent(State& state, MonoTime now) {
  Keeping& keeping = state.keeping;
  std::string first =
      EncodeFrame(ReadyFrame{getpid(), state.cgroups.root(), state.cgroups.degraded()});
  first += EncodeFrame(Inventory(state, now));
  for (const auto& [slot, worker] : state.workers) {
    if (worker.exec_status.ok() || worker.exec_errno != 0) continue;
    first += EncodeFrame(StartedFrame{worker.generation, worker.local_rank, worker.pid});
  }
  state.Unwatch(keeping.candidate.get());
  state.agent = std::move(keeping.candidate);
  state.agent_reader = std::move(keeping.candidate_reader);
  DropCandidate(state);
  keeping.alone_since = keeping.until = MonoTime::Never();
  state.outbox.Attach(state.agent.get(), first);
  for (const auto& [number, generation] : state.generations) {
    for (const auto& [local_rank, exit] : generation.exits) state.outbox.Send(exit);
  }
  state.Watch(state.agent.get(), Source::kAgent, 0, uint32_t{EPOLLIN} | EPOLLOUT);
  state.agent_wants_output = true;
}

// False: it is nobody who could take over.
bool ReadCandidate(Keeping& keeping) {
  char chunk[kCandidateBytes];
  const ssize_t n = recv(keeping.candidate.get(), chunk, sizeof(chunk), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  // It has nothing to say before it is answered.
  if (n == 0 || keeping.candidate_knows_token) return false;
  keeping.candidate_reader.Append(absl::string_view(chunk, static_cast<size_t>(n)));
  const auto frame = NextFrame(keeping.candidate_reader);
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
  if (keeping.listener.ok() && keeping.path == keep.socket_path) return;
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
  state.keeping.candidate = std::move(fd);
  state.Watch(state.keeping.candidate.get(), Source::kCandidate, 0, EPOLLIN);
}

void HandleCandidate(State& state) {
  Keeping& keeping = state.keeping;
  if (!keeping.candidate.ok()) return;
  if (!ReadCandidate(keeping)) return DropCandidate(state);
  if (keeping.candidate_knows_token && !state.agent.ok()) BecomeAgent(state, MonoNow());
}

bool OutliveAgent(State& state, MonoTime now) {
  Keeping& keeping = state.keeping;
  if (keeping.said_goodbye || keeping.time == absl::ZeroDuration()) return false;
  state.Unwatch(state.agent.get());
  state.agent.Reset();
  state.agent_reader = frames::FrameReader(kMaxFrameBytes);
  state.outbox.Detach();
  keeping.alone_since = now;
  keeping.until = now + keeping.time;
  if (IsForsaken(state, now)) return false;
  if (keeping.candidate_knows_token) BecomeAgent(state, now);
  return true;
}

bool IsForsaken(const State& state, MonoTime now) {
  return !state.agent.ok() && (state.generations.empty() || now >= state.keeping.until);
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

}  // namespace cadre
