#include "rendezvous/service/acceptor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "rendezvous/service/listening.h"

namespace cadre::service {
namespace {

constexpr int kEventsPerTurn = 64;
// So that deadlines are kept while many come.
constexpr int kAcceptsPerTurn = 64;
// Descriptors that were made free are free a moment later, when gRPC has closed them.
constexpr int kPauseMs = 20;
// One of so many newcomers makes room at once: who comes behind a crowd of them must not wait until
// each has given way by itself.
constexpr size_t kOneOfSoManyGivesWay = 8;
constexpr int kMaxWaitMs = 60'000;

bool IsOutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

Peer PeerOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return {text, ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  }
  return {text, ntohs(v6.sin6_port)};
}

void Watch(int epoll, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

bool SomebodyComes(int listener) {
  pollfd ready = {listener, POLLIN, 0};
  return poll(&ready, 1, 0) > 0;
}

ScopedFd OpenReserve() { return ScopedFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

std::optional<Peer> PeerOf(const std::string& context_peer) {
  // All that gRPC writes in this way in an address.
  const std::string decoded =
      absl::StrReplaceAll(context_peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  absl::string_view rest = decoded;
  if (!absl::ConsumePrefix(&rest, "ipv4:") && !absl::ConsumePrefix(&rest, "ipv6:")) {
    return std::nullopt;
  }
  const size_t colon = rest.rfind(':');
  Peer peer;
  if (colon == rest.npos || !absl::SimpleAtoi(rest.substr(colon + 1), &peer.port)) {
    return std::nullopt;
  }
  absl::string_view address = rest.substr(0, colon);
  if (absl::ConsumePrefix(&address, "[")) absl::ConsumeSuffix(&address, "]");
  // Without the zone of a link-local one, which the kernel gives beside the address.
  peer.address = std::string(address.substr(0, address.find('%')));
  return peer;
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const AcceptorOptions& options) {
  ASSIGN_OR_RETURN(Listening listening, service::Listen(options.host, options.port));
  return std::unique_ptr<Acceptor>(
      new Acceptor(options, std::move(listening.sockets), listening.port));
}

Acceptor::Acceptor(const AcceptorOptions& options, std::vector<ScopedFd> listeners, int port)
    : listeners_(std::move(listeners)),
      port_(port),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      reserve_(OpenReserve()),
      awaits_first_byte_(options.awaits_first_byte),
      newcomers_(options.most_newcomers, options.patience) {}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  listeners_.clear();
}

void Acceptor::Start(std::function<void(ScopedFd, char)> take) {
  take_ = std::move(take);
  Watch(epoll_.get(), wake_.get(), EPOLLIN);
  for (const ScopedFd& listener : listeners_) Watch(epoll_.get(), listener.get(), EPOLLIN);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Admit(const Peer& peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  LetGo(peer);
}

void Acceptor::Run() {
  epoll_event events[kEventsPerTurn];
  for (;;) {
    const int ready = epoll_wait(epoll_.get(), events, kEventsPerTurn, MillisToNextDeadline());
    for (int i = 0; i < ready; ++i) {
      const int fd = events[i].data.fd;
      const auto is_it = [fd](const ScopedFd& listener) { return listener.get() == fd; };
      if (std::any_of(listeners_.begin(), listeners_.end(), is_it)) {
        Accept(fd);
        continue;
      }
      if (fd == wake_.get()) return;
      Hear(fd);
    }
    DropOverdue();
  }
}

int Acceptor::MillisToNextDeadline() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const absl::Duration left = newcomers_.NextDeadline() - MonoNow();
  const absl::Duration wait = std::min(left, absl::Milliseconds(kMaxWaitMs));
  return static_cast<int>(absl::ToInt64Milliseconds(
      absl::Ceil(std::max(wait, absl::ZeroDuration()), absl::Milliseconds(1))));
}

void Acceptor::Accept(int listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    ScopedFd connection(accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                                SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!connection.ok()) {
      const int error = errno;
      if (error == ECONNABORTED || error == EINTR) continue;
      // The kernel looks for a descriptor first, also where nobody comes.
      if (IsOutOfDescriptors(error) && SomebodyComes(listener)) MakeRoom(listener);
      return;
    }
    // Before gRPC has it, whose threads may admit it at once.
    const Peer peer = PeerOf(address);
    // Who comes is not the one that gives way, where its first descriptor was the last.
    if (!Hold(peer, &connection) && !(DropOldest() && Hold(peer, &connection))) {
      connection.Reset();
      return MakeRoom(listener);
    }
    if (connection.ok()) take_(std::move(connection), '\0');
  }
}

void Acceptor::Hear(int held) {
  ScopedFd connection;
  char first = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto peer = peers_.find(held);
    if (peer == peers_.end()) return;
    const auto silent = silent_.find(held);
    // It went away by itself.
    if (silent == silent_.end()) return LetGo(Peer(peer->second));
    const ssize_t said = recv(held, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (said < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (said <= 0) return LetGo(Peer(peer->second));
    connection = std::move(silent->second);
    silent_.erase(silent);
    epoll_event event = {};
    event.events = EPOLLRDHUP;
    event.data.fd = held;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, held, &event);
  }
  take_(std::move(connection), first);
}

bool Acceptor::Hold(const Peer& peer, ScopedFd* connection) {
  ScopedFd second(fcntl(connection->get(), F_DUPFD_CLOEXEC, 0));
  if (!second.ok()) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  LetGo(peer);
  const std::optional<Peer> gives_way = newcomers_.Add(peer, MonoNow());
  if (gives_way.has_value()) Drop(*gives_way);
  const uint32_t news = EPOLLRDHUP;
  Watch(epoll_.get(), second.get(), awaits_first_byte_ ? news | EPOLLIN : news);
  if (awaits_first_byte_) silent_[second.get()] = std::move(*connection);
  peers_[second.get()] = peer;
  held_[peer] = std::move(second);
  return true;
}

bool Acceptor::DropOldest() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (newcomers_.size() == 0) return false;
  size_t left = newcomers_.size() / kOneOfSoManyGivesWay + 1;
  for (; left > 0 && newcomers_.size() > 0; --left) {
    const std::optional<Peer> gives_way = newcomers_.TakeOldestOfTheMost();
    if (gives_way.has_value()) Drop(*gives_way);
  }
  return true;
}

void Acceptor::MakeRoom(int listener) {
  if (!DropOldest()) RefuseOne(listener);
  Pause();
}

void Acceptor::RefuseOne(int listener) {
  reserve_.Reset();
  ScopedFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)).Reset();
  reserve_ = OpenReserve();
}

void Acceptor::Pause() {
  pollfd wake = {wake_.get(), POLLIN, 0};
  poll(&wake, 1, kPauseMs);
}

void Acceptor::DropOverdue() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Peer& peer : newcomers_.TakeOverdue(MonoNow())) Drop(peer);
}

void Acceptor::Drop(const Peer& peer) {
  const auto held = held_.find(peer);
  if (held == held_.end()) return;
  shutdown(held->second.get(), SHUT_RDWR);
  LetGo(Peer(peer));
}

void Acceptor::LetGo(const Peer& peer) {
  newcomers_.Remove(peer);
  const auto held = held_.find(peer);
  if (held == held_.end()) return;
  const int fd = held->second.get();
  // By hand: the kernel would only once gRPC's descriptor is closed, too.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  peers_.erase(fd);
  silent_.erase(fd);
  held_.erase(held);
}

}  // namespace cadre::service
