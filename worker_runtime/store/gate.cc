#include "worker_runtime/store/gate.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "base/clock.h"
#include "base/peer_user.h"
#include "base/status_macros.h"
#include "cadre/status.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/sockets/shake.h"

namespace cadre::store {
namespace {

// The listener's number among the strangers'.
constexpr uint64_t kListener = 0;
// Connections that are looked at, and taken, before the others' turn.
constexpr int kMaxReady = 64;
constexpr int kAccepts = 16;
// Before this process tries again to open a descriptor.
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

Gate::Gate(ScopedFd epoll, ScopedFd listener, sockets::Terms terms, int ranks)
    : epoll_(std::move(epoll)),
      listener_(std::move(listener)),
      terms_(std::move(terms)),
      room_(static_cast<size_t>(ranks) + kMaxStrangers) {}

Result<std::unique_ptr<Gate>> Gate::Open(ScopedFd listener, sockets::Terms terms, int ranks) {
  ScopedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.ok()) return ErrnoToStatus(errno, "cannot make an epoll instance");
  std::unique_ptr<Gate> gate(
      new Gate(std::move(epoll), std::move(listener), std::move(terms), ranks));
  if (!gate->Watch(gate->listener_.get(), kListener)) {
    return ErrnoToStatus(errno, "cannot wait for ranks");
  }
  return gate;
}

bool Gate::Watch(int fd, uint64_t number) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

Entry Gate::Next() {
  if (proved_.empty()) {
    epoll_event events[kMaxReady];
    const int ready = epoll_wait(epoll_.get(), events, kMaxReady, 0);
    for (int i = 0; i < ready; ++i) {
      if (events[i].data.u64 == kListener) {
        Accept();
        continue;
      }
      const auto stranger = strangers_.find(events[i].data.u64);
      if (stranger != strangers_.end() && !Serve(stranger->second)) strangers_.erase(stranger);
    }
  }
  if (proved_.empty()) return ScopedFd();
  Entry next = std::move(proved_.front());
  proved_.pop_front();
  return next;
}

void Gate::Accept() {
  for (int i = 0; i < kAccepts; ++i) {
    ScopedFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.ok()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      if (errno == EMFILE || errno == ENFILE) lacked_descriptors_ = true;
      if (MakeRoom()) return;
      // It would be found waiting for ever.
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      pause_until_ = MonoNow() + kPause;
      return;
    }
    // They would take places for a while, and one may have the key that a shared machine shows.
    if (!MayServe(PeerUserOf(socket.get()))) continue;
    if (strangers_.size() >= room_) MakeRoom();
    Result<std::string> nonce = sockets::HandshakeNonce();
    if (!nonce.ok() || !Watch(socket.get(), last_number_ + 1)) continue;
    sockets::SetUp(socket);
    strangers_.emplace(++last_number_,
                       Stranger{std::move(socket),
                                sockets::Handshake::Answer(terms_, sockets::kStoreRank, INT_MAX,
                                                           *std::move(nonce)),
                                MonoNow() + kProofPatience, ""});
  }
}

bool Gate::MakeRoom() {
  const auto silent = std::find_if(strangers_.begin(), strangers_.end(),
                                   [](const auto& one) { return one.second.handshake.peer() < 0; });
  if (silent != strangers_.end()) {
    strangers_.erase(silent);
    return true;
  }
  if (strangers_.empty()) return false;
  strangers_.erase(strangers_.begin());
  return true;
}

bool Gate::Serve(Stranger& stranger) {
  const sockets::Shaken shaken =
      Shake(stranger.socket.get(), stranger.handshake, stranger.received);
  // A socket that is new takes what little this side has to say at once.
  if (shaken.progress == sockets::Progress::kWaits) return stranger.handshake.output().empty();
  if (shaken.progress == sockets::Progress::kDone &&
      stranger.handshake.purpose() == sockets::Purpose::kStore &&
      stranger.handshake.CheckTerms().ok()) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger.socket.get(), nullptr);
    proved_.push_back({std::move(stranger.socket), stranger.handshake.MakeRecordKeys()});
  } else if (stranger.handshake.peer() >= 0) {
    refused_rank_ = stranger.handshake.peer();
  }
  return false;
}

MonoTime Gate::Advance(MonoTime now) {
  if (now >= pause_until_) {
    pause_until_ = MonoTime::Never();
    Watch(listener_.get(), kListener);
  }
  while (!strangers_.empty() && now >= strangers_.begin()->second.give_up) {
    strangers_.erase(strangers_.begin());
  }
  if (strangers_.empty()) return pause_until_;
  return std::min(pause_until_, strangers_.begin()->second.give_up);
}

}  // namespace cadre::store
