#include "worker_runtime/sockets/mesh.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/peer_user.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/sockets/shake.h"

namespace cadre::sockets {
namespace {

constexpr absl::Duration kCheckInterval = absl::Seconds(1);
constexpr int kPollMillis = 1000;
// Before a rank that dropped a call is called again.
constexpr absl::Duration kRedialPause = absl::Milliseconds(50);
// Taken at once, so that those who are here already are served in between.
constexpr int kAccepts = 16;

// A connection on its way.
struct Pending {
  ScopedFd socket;
  Handshake handshake;
  MonoTime give_up;
  bool connected = false;
  std::string received = "";
  int peer = -1;  // whom this rank calls; -1: a connection that was accepted
  Purpose purpose = Purpose::kControl;
};

// A call that has yet to be made.
struct Redial {
  int peer;
  Purpose purpose;
  MonoTime at;
};

bool IsOutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

Status OutOfDescriptors(int error) {
  return ResourceExhaustedError(
      absl::StrCat("no socket for a connection between ranks: ", ErrnoText(error),
                   "; `ulimit -n` says how many files a process may open"));
}

class Connecting {
 public:
  Connecting(const MeshRequest& request, const ScopedFd& listener)
      : request_(request), listener_(listener) {
    for (const Purpose purpose : request.purposes) {
      mesh_[purpose].resize(static_cast<size_t>(request.size));
    }
    missing_ = request.purposes.size() * static_cast<size_t>(request.size - 1);
  }

  Result<Mesh> Run();

 private:
  Status CallRank(int peer, Purpose purpose);
  Status CallAgain();
  Status Accept();
  void MakeRoom();
  // Moves one on; false: it is not pending any more.
  Result<bool> Serve(Pending& pending, short events);
  Result<bool> ShakeOn(Pending& pending);
  Result<bool> Lost(Pending& pending, int error);
  Status Complete(Pending& pending);
  Status Advance();
  Status Missing() const;

  const MeshRequest& request_;
  const ScopedFd& listener_;
  Mesh mesh_;
  size_t missing_ = 0;
  std::list<Pending> pending_;
  std::vector<Redial> redials_;
  // Since when calls of a rank have been dropped, one after another, and how many were.
  struct Dropped {
    MonoTime since;
    int calls = 0;
  };
  std::map<std::pair<int, Purpose>, Dropped> dropped_;
  // Why the last connection was refused that this rank had accepted; empty: none was.
  std::string refusal_;
};

Status Connecting::CallRank(int peer, Purpose purpose) {
  const std::string& endpoint = request_.endpoints[peer];
  errno = 0;
  Result<ScopedFd> socket = StartConnecting(endpoint);
  if (!socket.ok() && IsOutOfDescriptors(errno)) return OutOfDescriptors(errno);
  if (!socket.ok()) {
    return Status(socket.status().code(),
                  absl::StrCat("rank ", peer, " cannot be reached: ", socket.status().message()));
  }
  ASSIGN_OR_RETURN(std::string nonce, HandshakeNonce());
  pending_.push_back(
      {*std::move(socket),
       Handshake::Call(request_.terms, request_.rank, peer, purpose, std::move(nonce)),
       request_.deadline, false, "", peer, purpose});
  return OkStatus();
}

Status Connecting::CallAgain() {
  const MonoTime now = MonoNow();
  const std::vector<Redial> redials = std::exchange(redials_, {});
  for (const Redial& redial : redials) {
    if (now < redial.at) {
      redials_.push_back(redial);
    } else {
      RETURN_IF_ERROR(CallRank(redial.peer, redial.purpose));
    }
  }
  return OkStatus();
}

void Connecting::MakeRoom() {
  const auto oldest = [this](bool only_silent) {
    return std::find_if(pending_.begin(), pending_.end(), [only_silent](const Pending& one) {
      return one.peer < 0 && (!only_silent || one.handshake.peer() < 0);
    });
  };
  auto dropped = oldest(/*only_silent=*/true);
  if (dropped == pending_.end()) dropped = oldest(/*only_silent=*/false);
  if (dropped != pending_.end()) pending_.erase(dropped);
}

Status Connecting::Accept() {
  for (int i = 0; i < kAccepts; ++i) {
    ScopedFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.ok()) {
      return IsOutOfDescriptors(errno) ? OutOfDescriptors(errno) : OkStatus();
    }
    // All ranks are of one user. Another one of this machine could only take their places.
    if (!MayServe(PeerUserOf(socket.get()))) continue;
    if (pending_.size() >= missing_ + kMaxStrangers) MakeRoom();
    ASSIGN_OR_RETURN(std::string nonce, HandshakeNonce());
    pending_.push_back(
        {std::move(socket),
         Handshake::Answer(request_.terms, request_.rank, request_.size, std::move(nonce)),
         MonoNow() + kHandshakePatience, true});
  }
  return OkStatus();
}

Status Connecting::Complete(Pending& pending) {
  const auto connections = mesh_.find(pending.handshake.purpose());
  if (connections == mesh_.end()) return OkStatus();
  RETURN_IF_ERROR(pending.handshake.CheckTerms());
  wire::Connection& connection = connections->second[pending.handshake.peer()];
  // A rank that called again, since it did not see that its first call was taken: the last counts.
  if (!connection.ok()) --missing_;
  SetUp(pending.socket);
  if (pending.handshake.purpose() == Purpose::kControl) NoticeUntaken(pending.socket);
  connection = wire::Connection(std::move(pending.socket), pending.handshake.MakeRecordKeys());
  return OkStatus();
}

// A rank may have dropped the call to make room for others; who called this rank calls again.
Result<bool> Connecting::Lost(Pending& pending, int error) {
  if (pending.peer < 0) return false;
  if (pending.connected && (error == 0 || error == ECONNRESET || error == EPIPE)) {
    const MonoTime now = MonoNow();
    Dropped& dropped = dropped_[{pending.peer, pending.purpose}];
    if (dropped.calls++ == 0) dropped.since = now;
    if (now - dropped.since >= kHandshakePatience) {
      return UnavailableError(absl::StrCat(
          "rank ", pending.peer, " at ", request_.endpoints[pending.peer], " took the call ",
          dropped.calls, " times in ", absl::ToInt64Seconds(kHandshakePatience),
          " s and closed it each time: it does not know "
          "what came as this rank's hello, which was altered on its way or is another version's"));
    }
    redials_.push_back({pending.peer, pending.purpose, MonoNow() + kRedialPause});
    return false;
  }
  return UnavailableError(absl::StrCat("rank ", pending.peer, " cannot be reached at ",
                                       request_.endpoints[pending.peer], ": ", ErrnoText(error)));
}

Result<bool> Connecting::Serve(Pending& pending, short events) {
  if (events == 0) return true;
  if (!pending.connected) {
    const int error = ErrorOf(pending.socket);
    if (error != 0) return Lost(pending, error);
    pending.connected = true;
  }
  return ShakeOn(pending);
}

Result<bool> Connecting::ShakeOn(Pending& pending) {
  const Shaken shaken = Shake(pending.socket.get(), pending.handshake, pending.received);
  switch (shaken.progress) {
    case Progress::kWaits:
      return true;
    case Progress::kDone:
      RETURN_IF_ERROR(Complete(pending));
      return false;
    case Progress::kLost:
      return Lost(pending, shaken.error);
    case Progress::kRefused:
      break;
  }
  // Of strangers one word at the end, if a rank is missing then; who answers in a rank's place is
  // none.
  if (pending.peer >= 0) return shaken.refusal;
  refusal_ = std::string(shaken.refusal.message());
  return false;
}

Status Connecting::Missing() const {
  std::set<int> ranks;
  for (const auto& [purpose, connections] : mesh_) {
    for (int peer = 0; peer < request_.size; ++peer) {
      if (peer != request_.rank && !connections[peer].ok()) ranks.insert(peer);
    }
  }
  std::vector<std::string> first;
  for (const int peer : ranks) {
    if (first.size() < kFirstFew) first.push_back(absl::StrCat("rank ", peer));
  }
  return DeadlineExceededError(
      absl::StrCat("no connection in time with ", FirstFew(first, ranks.size()),
                   refusal_.empty() ? "" : "; the last connection that was refused: ", refusal_));
}

Status Connecting::Advance() {
  const MonoTime now = MonoNow();
  if (now >= request_.deadline) return Missing();
  pending_.remove_if([now](const Pending& one) { return one.peer < 0 && now >= one.give_up; });
  return OkStatus();
}

Result<Mesh> Connecting::Run() {
  for (int peer = 0; peer < request_.rank; ++peer) {
    for (const Purpose purpose : request_.purposes) RETURN_IF_ERROR(CallRank(peer, purpose));
  }
  MonoTime next_check = MonoNow() + kCheckInterval;
  while (missing_ > 0) {
    std::vector<pollfd> descriptors = {{listener_.get(), POLLIN, 0}};
    for (Pending& one : pending_) {
      const bool writes = !one.connected || !one.handshake.output().empty();
      descriptors.push_back({one.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
    }
    MonoTime wake = std::min(request_.deadline, next_check);
    for (const Redial& redial : redials_) wake = std::min(wake, redial.at);
    const int ready = poll(descriptors.data(), descriptors.size(), MillisUntil(wake, kPollMillis));
    if (ready > 0) {
      size_t at = 0;
      const size_t polled = descriptors.size();
      for (auto one = pending_.begin(); one != pending_.end() && ++at < polled;) {
        ASSIGN_OR_RETURN(const bool goes_on, Serve(*one, descriptors[at].revents));
        one = goes_on ? std::next(one) : pending_.erase(one);
      }
      if (descriptors[0].revents != 0) RETURN_IF_ERROR(Accept());
    }
    RETURN_IF_ERROR(Advance());
    RETURN_IF_ERROR(CallAgain());
    if (MonoNow() < next_check) continue;
    next_check = MonoNow() + kCheckInterval;
    RETURN_IF_ERROR(request_.check());
  }
  return std::move(mesh_);
}

}  // namespace

Result<Mesh> ConnectMesh(const MeshRequest& request, const ScopedFd& listener) {
  return Connecting(request, listener).Run();
}

}  // namespace cadre::sockets
