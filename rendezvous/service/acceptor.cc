#include "rendezvous/service/acceptor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/peer_user.h"
#include "base/status_macros.h"
#include "rendezvous/service/grpc_reads.h"
#include "rendezvous/service/listening.h"

namespace cadre::service {
namespace {

constexpr int kEventsPerTurn = 64;
// Limited, so that deadlines are met while many connections come.
constexpr int kAcceptsPerTurn = 64;
// Descriptors become free a moment after the connections are dropped, when gRPC has closed them.
constexpr int kPauseMs = 20;
// One in this many unauthenticated connections is dropped at once, so that a client behind a crowd
// of them need not wait until each is dropped by itself.
constexpr size_t kEvictedShare = 8;
constexpr int kMaxWaitMs = 60'000;
// The interval at which connections that wait for their source's budget are checked.
constexpr int kWaitingTurnMs = 10;
// A waiting connection is closed after this time. If clients come faster than the budget allows,
// each has the same chance of being the newest, and gets a new one every half second.
constexpr absl::Duration kWaitsMax = absl::Milliseconds(500);
// The time in which a refusal reaches its client.
constexpr absl::Duration kRefusalTime = absl::Milliseconds(200);

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

bool HasConnectionToAccept(int listener) {
  pollfd ready = {listener, POLLIN, 0};
  return poll(&ready, 1, 0) > 0;
}

// Local processes are charged to their user, so that one user cannot keep others out; other
// connections are charged to their address.
std::string SourceOfConnection(const Peer& peer, int connection) {
  const std::string source = SourceOf(peer.address);
  if (source != SourceOf("127.0.0.1")) return source;
  const PeerUser user = PeerUserOf(connection);
  if (user.where != PeerUser::Where::kHere) return source;
  return absl::StrCat(source, " of user ", user.uid);
}

ScopedFd OpenReserve() { return ScopedFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

std::optional<Peer> PeerOf(const std::string& context_peer) {
  // gRPC escapes only these characters in an address.
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
  // Without the zone of a link-local address, which the kernel reports separately.
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
      budget_(std::make_shared<AdmissionBudget>(options.limits)),
      log_(options.log),
      pending_(options.max_pending, options.timeout) {}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Stop() {
  stopping_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
  listeners_.clear();
}

void Acceptor::Start(std::function<void(ScopedFd, char)> hand_over) {
  hand_over_ = std::move(hand_over);
  Watch(epoll_.get(), wake_.get(), EPOLLIN);
  for (const ScopedFd& listener : listeners_) Watch(epoll_.get(), listener.get(), EPOLLIN);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Admit(const Peer& peer, std::shared_ptr<CallerTraffic> caller) {
  const absl::MutexLock lock(&mutex_);
  const auto held = held_.find(peer);
  if (held == held_.end()) return;
  const std::shared_ptr<ConnectionWatch> watch = held->second.watch;
  if (watch == nullptr) return Release(peer);
  const absl::Status may = watch->Admit(std::move(caller), MonoNow());
  if (may.ok()) return Release(peer);
  if (log_) log_(peer.address, may);
  Drop(peer);
}

void Acceptor::Refuse(const Peer& peer) {
  const absl::MutexLock lock(&mutex_);
  if (pending_.SetDeadline(peer, MonoNow() + kRefusalTime)) Wake();
}

void Acceptor::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void Acceptor::Run() {
  epoll_event events[kEventsPerTurn];
  while (!stopping_) {
    const int ready = epoll_wait(epoll_.get(), events, kEventsPerTurn, MillisToNextTurn());
    for (int i = 0; i < ready; ++i) {
      const int fd = events[i].data.fd;
      const auto is_it = [fd](const ScopedFd& listener) { return listener.get() == fd; };
      if (std::any_of(listeners_.begin(), listeners_.end(), is_it)) {
        Accept(fd);
      } else if (fd == wake_.get()) {
        uint64_t times = 0;
        [[maybe_unused]] const ssize_t done = read(fd, &times, sizeof(times));
      } else {
        OnReadable(fd);
      }
    }
    HandOverReady();
    DropOverdue();
  }
}

int Acceptor::MillisToNextTurn() {
  const absl::MutexLock lock(&mutex_);
  const int max = waiting_.empty() ? kMaxWaitMs : kWaitingTurnMs;
  const absl::Duration left = pending_.NextDeadline() - MonoNow();
  const absl::Duration wait = std::min(left, absl::Milliseconds(max));
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
      // The kernel reserves a descriptor first, so the error occurs also when no connection
      // waits.
      if (IsOutOfDescriptors(error) && HasConnectionToAccept(listener)) MakeRoom(listener);
      return;
    }
    const Peer peer = PeerOf(address);
    // If its first descriptor was the last one, an older connection is dropped and not the new one.
    if (!Hold(peer, &connection) && !(EvictOldest() && Hold(peer, &connection))) {
      connection.Reset();
      return MakeRoom(listener);
    }
  }
}

void Acceptor::OnReadable(int second) {
  const absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(second);
  if (found == peers_.end()) return;
  const Peer peer = found->second;
  Held& held = held_.at(peer);
  // The connection was closed by the client.
  if (held.first_byte.has_value()) return Release(peer);
  char first = 0;
  const ssize_t count = recv(second, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return Release(peer);
  held.first_byte = first;
  epoll_event event = {};
  event.events = EPOLLRDHUP;
  event.data.fd = second;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, second, &event);
  held.queue_number = next_waiting_++;
  waiting_[held.source][held.queue_number] = peer;
  pending_.SetDeadline(peer, MonoNow() + std::min(kWaitsMax, pending_.timeout()));
}

bool Acceptor::Hold(const Peer& peer, ScopedFd* connection) {
  ScopedFd second(fcntl(connection->get(), F_DUPFD_CLOEXEC, 0));
  if (!second.ok()) return false;
  std::string source = SourceOfConnection(peer, connection->get());
  const absl::MutexLock lock(&mutex_);
  Release(peer);
  const std::optional<Peer> evicted = pending_.Add(peer, source, MonoNow());
  if (evicted.has_value()) Drop(*evicted);
  Watch(epoll_.get(), second.get(), EPOLLIN | EPOLLRDHUP);
  peers_[second.get()] = peer;
  Held& held = held_[peer];
  held.second = std::move(second);
  held.source = std::move(source);
  held.connection = std::move(*connection);
  return true;
}

void Acceptor::StopWaiting(Held* held) {
  if (held->queue_number == 0) return;
  const auto of_source = waiting_.find(held->source);
  of_source->second.erase(held->queue_number);
  if (of_source->second.empty()) waiting_.erase(of_source);
  held->queue_number = 0;
}

void Acceptor::HandOverReady() {
  for (;;) {
    std::optional<Ready> ready = TakeReady();
    if (!ready.has_value()) return;
    // Called without the lock, because gRPC's threads may call Admit before this returns.
    hand_over_(std::move(ready->connection), ready->first_byte);
  }
}

std::optional<Acceptor::Ready> Acceptor::TakeReady() {
  const absl::MutexLock lock(&mutex_);
  const MonoTime now = MonoNow();
  for (const auto& [source, of_source] : waiting_) {
    if (!budget_->Begin(source, now)) continue;
    const Peer peer = of_source.rbegin()->second;
    Held& held = held_.at(peer);
    StopWaiting(&held);
    pending_.SetDeadline(peer, now + pending_.timeout());
    held.watch = std::make_shared<ConnectionWatch>(peer.address, held.source, budget_, log_);
    WatchReads(held.connection.get(), held.watch);
    return Ready{std::move(held.connection), *held.first_byte};
  }
  return std::nullopt;
}

bool Acceptor::EvictOldest() {
  const absl::MutexLock lock(&mutex_);
  if (pending_.size() == 0) return false;
  size_t left = pending_.size() / kEvictedShare + 1;
  for (; left > 0 && pending_.size() > 0; --left) {
    const std::optional<Peer> evicted = pending_.TakeOldestOfTheMost();
    if (evicted.has_value()) Drop(*evicted);
  }
  return true;
}

void Acceptor::MakeRoom(int listener) {
  if (!EvictOldest()) RefuseOne(listener);
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
  const absl::MutexLock lock(&mutex_);
  for (const Peer& peer : pending_.TakeOverdue(MonoNow())) Drop(peer);
}

void Acceptor::Drop(const Peer& peer) {
  const auto held = held_.find(peer);
  if (held == held_.end()) return;
  shutdown(held->second.second.get(), SHUT_RDWR);
  Release(Peer(peer));
}

void Acceptor::Release(const Peer& peer) {
  pending_.Remove(peer);
  const auto held = held_.find(peer);
  if (held == held_.end()) return;
  StopWaiting(&held->second);
  const int fd = held->second.second.get();
  // Removed explicitly: the kernel would do it only once gRPC's descriptor is closed too.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  peers_.erase(fd);
  held_.erase(held);
}

std::optional<Peer> PendingConnections::Add(const Peer& peer, const std::string& source,
                                            MonoTime now) {
  // If the port is known, its earlier connection has ended.
  Remove(peer);
  std::optional<Peer> evicted;
  if (peers_.size() >= max_) evicted = TakeOldestOfTheMost();
  const uint64_t number = next_number_++;
  const MonoTime deadline = now + timeout_;
  peers_[peer] = {source, number, deadline};
  by_deadline_.insert({deadline, peer});
  OfSource& of_source = sources_[source];
  by_size_.erase({of_source.size(), source});
  of_source[number] = peer;
  by_size_.insert({of_source.size(), source});
  return evicted;
}

bool PendingConnections::Remove(const Peer& peer) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return false;
  const std::string& source = at->second.source;
  const auto of_source = sources_.find(source);
  by_size_.erase({of_source->second.size(), source});
  of_source->second.erase(at->second.number);
  if (of_source->second.empty()) {
    sources_.erase(of_source);
  } else {
    by_size_.insert({of_source->second.size(), source});
  }
  by_deadline_.erase({at->second.deadline, peer});
  peers_.erase(at);
  return true;
}

bool PendingConnections::SetDeadline(const Peer& peer, MonoTime deadline) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return false;
  by_deadline_.erase({at->second.deadline, peer});
  at->second.deadline = deadline;
  by_deadline_.insert({deadline, peer});
  return true;
}

std::optional<Peer> PendingConnections::TakeOldestOfTheMost() {
  if (by_size_.empty()) return std::nullopt;
  const Peer oldest = sources_.at(by_size_.rbegin()->second).begin()->second;
  Remove(oldest);
  return oldest;
}

std::vector<Peer> PendingConnections::TakeOverdue(MonoTime now) {
  std::vector<Peer> overdue;
  for (const auto& [deadline, peer] : by_deadline_) {
    if (now < deadline) break;
    overdue.push_back(peer);
  }
  for (const Peer& peer : overdue) Remove(peer);
  return overdue;
}

MonoTime PendingConnections::NextDeadline() const {
  return by_deadline_.empty() ? MonoTime::Never() : by_deadline_.begin()->first;
}

}  // namespace cadre::service
