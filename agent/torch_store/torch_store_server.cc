#include "agent/torch_store/torch_store_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/torch_store/torch_request.h"
#include "base/clock.h"
#include "base/peer_user.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

// Event numbers of descriptors that are not connections.
constexpr uint64_t kListener = 0, kWakeUp = 1;
// Limits of one Serve: events handled, connections accepted, and bytes read per connection; the
// rest is left for the next.
constexpr int kMaxEvents = 256, kMaxAccepted = 256;
constexpr size_t kReadBytes = 64 << 10;
// The pause after a connection found no free descriptor.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

absl::Status UnknownProtocolError() {
  return absl::InvalidArgumentError(
      "its first message is not the one that PyTorch 2.1 or newer sends");
}

}  // namespace

struct TorchStoreServer::Connection {
  Connection(uint64_t number, ScopedFd socket, std::string peer, ByteBudget* budget)
      : number(number), socket(std::move(socket)), peer(std::move(peer)), answers(budget) {}

  const uint64_t number;
  const ScopedFd socket;
  const std::string peer;
  TorchRequestReader reader;
  AnswerQueue answers;
  // The budget taken for the incomplete request.
  size_t unfinished_bytes = 0;
  uint32_t watched = EPOLLIN;
  bool validated = false;
  bool has_answers = false;  // to the current event
  // There was no room for an answer.
  bool overflowed = false;
  MonoTime waits_since;
};

absl::StatusOr<std::unique_ptr<TorchStoreServer>> TorchStoreServer::Make(Options options) {
  ScopedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  ScopedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.ok() || !wake.ok()) return absl::ErrnoToStatus(errno, "cannot wait for clients");
  std::unique_ptr<TorchStoreServer> server(
      new TorchStoreServer(std::move(options), std::move(epoll), std::move(wake)));
  if (!server->Watch(server->options_.listener.get(), kListener, EPOLLIN, true) ||
      !server->Watch(server->wake_.get(), kWakeUp, EPOLLIN, true)) {
    return absl::ErrnoToStatus(errno, "cannot wait for clients");
  }
  return server;
}

TorchStoreServer::TorchStoreServer(Options options, ScopedFd epoll, ScopedFd wake)
    : options_(std::move(options)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      budget_(options_.max_bytes),
      keys_(&budget_, [this](uint64_t number, absl::string_view bytes,
                             const SharedText& value) { Answer(number, bytes, value); }),
      last_number_(kWakeUp) {}

TorchStoreServer::~TorchStoreServer() {
  while (!connections_.empty()) Close(connections_.begin()->first, absl::CancelledError());
}

bool TorchStoreServer::Watch(int fd, uint64_t number, uint32_t events, bool first) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = number;
  return epoll_ctl(epoll_.get(), first ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0;
}

void TorchStoreServer::Wake() { eventfd_write(wake_.get(), 1); }

MonoTime TorchStoreServer::NextDeadline() const {
  MonoTime next = stop_waits_at_;
  if (!unvalidated_.empty()) next = std::min(next, unvalidated_.front().first);
  if (accept_at_ != MonoTime()) next = std::min(next, accept_at_);
  return next;
}

void TorchStoreServer::Serve(absl::Duration limit) {
  const absl::Duration wait = std::min(limit, NextDeadline() - MonoNow());
  int wait_ms = -1;
  // Rounded up, so that deadlines have passed on return.
  if (wait != absl::InfiniteDuration()) {
    wait_ms = static_cast<int>(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(wait + absl::Microseconds(999)), 0, 1 << 30));
  }
  epoll_event events[kMaxEvents];
  const int ready = epoll_wait(epoll_.get(), events, kMaxEvents, wait_ms);
  const MonoTime now = MonoNow();
  for (int i = 0; i < ready; ++i) OnEvent(events[i].data.u64, events[i].events, now);
  CloseExpired(now);
}

void TorchStoreServer::OnEvent(uint64_t number, uint32_t events, MonoTime now) {
  if (number == kListener) return Accept(now);
  if (number == kWakeUp) {
    eventfd_t count = 0;
    eventfd_read(wake_.get(), &count);
    return;
  }
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  absl::Status status;
  if ((events & EPOLLOUT) != 0) {
    connection.has_answers = true;
    answered_.push_back(number);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) status = ReadFrom(connection, now);
  if (!status.ok()) Close(number, status);
  SendAnswers();
}

void TorchStoreServer::Accept(MonoTime now) {
  for (int i = 0; i < kMaxAccepted; ++i) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    ScopedFd socket(accept4(options_.listener.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.ok()) {
      AddConnection(std::move(socket), peer, now);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      ReportOnce(kNoDescriptors,
                 absl::StrCat("cannot accept another connection beside its ", connections_.size(),
                              ": ", absl::ErrnoToStatus(errno, "accept").message(),
                              "; raise the limit of open files (ulimit -n)"));
      Watch(options_.listener.get(), kListener, 0, false);
      accept_at_ = now + kAcceptPause;
      return;
    }
    // A connection that was closed before it was accepted is not an error.
    if (errno != EINTR && errno != ECONNABORTED) return;
  }
}

void TorchStoreServer::AddConnection(ScopedFd socket, const sockaddr_storage& peer, MonoTime now) {
  std::string address = AddressText(peer);
  if (!options_.nodes.Has(peer)) {
    return ReportOnce(
        kUnknownNode,
        absl::StrCat(
            "refused a connection from ", address,
            ", which is not the address of a node of this generation; if a node connects from "
            "there, start the job with --set agent_store=false, so that rank 0 serves the store "
            "itself"));
  }
  // Any user of this machine can connect from its address, so the peer's user is checked.
  const PeerUser user = PeerUserOf(socket.get());
  if (!MayServe(user)) {
    // A peer that has closed its connection needs no message.
    if (user.where == PeerUser::Where::kGone) return;
    return ReportOnce(
        kOtherUser, absl::StrCat("refused a connection from ", UserText(user),
                                 " on this machine; only processes of the job's user may connect"));
  }
  if (connections_.size() >= options_.max_connections) {
    return ReportOnce(
        kTooMany,
        absl::StrCat("has ", options_.max_connections,
                     " connections already, which is its limit; it refused one from ", address));
  }
  const uint64_t number = ++last_number_;
  if (!Watch(socket.get(), number, EPOLLIN, true)) return;
  connections_.emplace(number, std::make_unique<Connection>(number, std::move(socket),
                                                            std::move(address), &budget_));
  unvalidated_.emplace_back(now + options_.validation_time, number);
}

absl::Status TorchStoreServer::ReadFrom(Connection& connection, MonoTime now) {
  char buffer[kReadBytes];
  const ssize_t got = recv(connection.socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got == 0) return absl::CancelledError();
  if (got < 0) {
    const bool again = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    return again ? absl::OkStatus() : absl::CancelledError();
  }
  absl::string_view bytes(buffer, static_cast<size_t>(got));
  while (!bytes.empty()) {
    TorchRequest request;
    const absl::StatusOr<bool> complete = connection.reader.Read(&bytes, &request);
    if (!complete.ok() && !connection.validated) return UnknownProtocolError();
    if (!complete.ok()) return complete.status();
    if (!*complete) break;
    RETURN_IF_ERROR(OnRequest(connection, std::move(request), now));
  }
  const size_t unfinished = connection.reader.held_bytes();
  budget_.Give(std::exchange(connection.unfinished_bytes, 0));
  if (!budget_.Fits(unfinished)) {
    return absl::ResourceExhaustedError(absl::StrCat("the store holds ", budget_.limit() >> 20,
                                                     " MiB already, which is its limit"));
  }
  budget_.Take(connection.unfinished_bytes = unfinished);
  return absl::OkStatus();
}

absl::Status TorchStoreServer::OnRequest(Connection& connection, TorchRequest request,
                                         MonoTime now) {
  budget_.Give(std::exchange(connection.unfinished_bytes, 0));
  const bool validates = request.op == TorchOp::kValidate && request.number == kTorchMagic;
  if (!connection.validated) {
    connection.validated = validates;
    if (validates) return absl::OkStatus();
    return UnknownProtocolError();
  }
  RETURN_IF_ERROR(keys_.Execute(connection.number, std::move(request)));
  if (keys_.Waits(connection.number)) connection.waits_since = now;
  return absl::OkStatus();
}

void TorchStoreServer::Answer(uint64_t number, absl::string_view bytes, const SharedText& value) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  if (!connection.overflowed) connection.overflowed = !connection.answers.Add(bytes, value);
  if (std::exchange(connection.has_answers, true)) return;
  answered_.push_back(number);
}

void TorchStoreServer::SendAnswers() {
  for (const uint64_t number : std::exchange(answered_, {})) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    connection.has_answers = false;
    if (connection.overflowed) {
      Close(number, absl::ResourceExhaustedError(absl::StrCat(
                        "the store holds ", budget_.limit() >> 20,
                        " MiB already, which is its limit, and has no room for an answer")));
      continue;
    }
    if (!connection.answers.SendTo(connection.socket.get())) {
      Close(number, absl::CancelledError());
      continue;
    }
    uint32_t wanted = 0;
    if (connection.answers.unread_bytes() <= kMaxTorchUnreadBytes) wanted |= EPOLLIN;
    if (!connection.answers.empty()) wanted |= EPOLLOUT;
    if (wanted == connection.watched) continue;
    connection.watched = wanted;
    Watch(connection.socket.get(), number, wanted, false);
  }
}

void TorchStoreServer::Close(uint64_t number, const absl::Status& why) {
  const auto found = connections_.find(number);
  const Problem what = absl::IsResourceExhausted(why)  ? kNoRoom
                       : absl::IsDeadlineExceeded(why) ? kSilent
                                                       : kProtocolError;
  if (!why.message().empty()) {
    ReportOnce(what, absl::StrCat("closed the connection from ", found->second->peer, ": ",
                                  why.message()));
  }
  budget_.Give(found->second->unfinished_bytes);
  keys_.Forget(number);
  connections_.erase(found);
}

void TorchStoreServer::StopWaits() {
  stopped_at_ = MonoNow();
  stop_waits_at_ = stopped_at_ + options_.stop_timeout;
}

void TorchStoreServer::CloseExpired(MonoTime now) {
  while (!unvalidated_.empty()) {
    const auto [deadline, number] = unvalidated_.front();
    const auto found = connections_.find(number);
    const bool silent = found != connections_.end() && !found->second->validated;
    if (silent && deadline > now) break;
    unvalidated_.pop_front();
    if (silent) {
      Close(number, absl::DeadlineExceededError(
                        absl::StrCat("it sent no valid first message within ",
                                     absl::FormatDuration(options_.validation_time))));
    }
  }
  if (accept_at_ != MonoTime() && accept_at_ <= now) {
    accept_at_ = MonoTime();
    Watch(options_.listener.get(), kListener, EPOLLIN, false);
  }
  if (stop_waits_at_ > now) return;
  stop_waits_at_ = MonoTime::Never();
  std::vector<uint64_t> late;
  for (const auto& [number, connection] : connections_) {
    if (keys_.Waits(number) && connection->waits_since <= stopped_at_) late.push_back(number);
  }
  for (const uint64_t number : late) Close(number, absl::CancelledError());
}

void TorchStoreServer::ReportOnce(Problem what, const std::string& line) {
  if (std::exchange(reported_[what], true)) return;
  options_.report(absl::StrCat("the store that this agent serves to PyTorch ", line));
}

namespace {

// Pieces sent with one system call.
constexpr size_t kMaxPieces = 64;
// Short answers are joined up to this size.
constexpr size_t kMaxTogether = 4 << 10;

}  // namespace

bool AnswerQueue::Add(absl::string_view bytes, const SharedText& value) {
  const size_t more = bytes.size() + (value == nullptr ? 1 : 2) * sizeof(Piece);
  if (!budget_->Fits(more)) return false;
  const bool together = !pieces_.empty() && pieces_.back().value == nullptr &&
                        pieces_.back().bytes.size() + bytes.size() <= kMaxTogether;
  if (!together) pieces_.emplace_back();
  pieces_.back().bytes.append(bytes.data(), bytes.size());
  size_t counted = bytes.size() + (together ? 0 : sizeof(Piece));
  unread_bytes_ += bytes.size();
  if (value != nullptr) {
    pieces_.push_back({"", value});
    counted += sizeof(Piece);
    unread_bytes_ += value->text().size();
  }
  budget_->Take(counted);
  counted_ += counted;
  return true;
}

bool AnswerQueue::SendTo(int socket) {
  while (!pieces_.empty()) {
    iovec parts[kMaxPieces];
    msghdr message = {};
    message.msg_iov = parts;
    size_t offset = sent_, wanted = 0;
    for (size_t i = 0; i < std::min(pieces_.size(), kMaxPieces); ++i) {
      const absl::string_view text = pieces_[i].text().substr(offset);
      parts[message.msg_iovlen++] = {const_cast<char*>(text.data()), text.size()};
      wanted += text.size();
      offset = 0;
    }
    const ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    Sent(static_cast<size_t>(sent));
    if (static_cast<size_t>(sent) < wanted) return true;
  }
  return true;
}

void AnswerQueue::Sent(size_t bytes) {
  unread_bytes_ -= bytes;
  bytes += sent_;
  while (!pieces_.empty() && bytes >= pieces_.front().text().size()) {
    const Piece& first = pieces_.front();
    bytes -= first.text().size();
    const size_t counted = sizeof(Piece) + first.bytes.size();
    counted_ -= counted;
    budget_->Give(counted);
    pieces_.pop_front();
  }
  sent_ = bytes;
}

namespace {

// The prefix of an IPv4-mapped IPv6 address.
constexpr absl::string_view kMapped("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);

std::string WithoutMapping(std::string bytes) {
  if (bytes.size() == 16 && bytes.compare(0, 12, kMapped.data(), 12) == 0) return bytes.substr(12);
  return bytes;
}

// Returns an empty string if it is not a numeric address.
std::string BytesOf(const std::string& address) {
  char bytes[16];
  const std::string bare = address.substr(0, address.find('%'));
  if (inet_pton(AF_INET, bare.c_str(), bytes) == 1) return std::string(bytes, 4);
  if (inet_pton(AF_INET6, bare.c_str(), bytes) != 1) return "";
  return WithoutMapping(std::string(bytes, 16));
}

std::string BytesOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return std::string(reinterpret_cast<const char*>(&v4.sin_addr), 4);
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return WithoutMapping(std::string(reinterpret_cast<const char*>(&v6.sin6_addr), 16));
}

bool IsLoopback(const std::string& bytes) {
  return bytes.size() == 4 ? bytes[0] == 127 : bytes == std::string(15, '\0') + '\x01';
}

}  // namespace

absl::StatusOr<NodeAddresses> NodeAddresses::Make(const std::string& own,
                                                  const std::vector<std::string>& nodes) {
  const std::string listens = BytesOf(own);
  if (listens.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("MASTER_ADDR ", Quoted(own), " is not a numeric address"));
  }
  NodeAddresses made;
  made.addresses_.insert(listens);
  for (const std::string& node : nodes) {
    std::string bytes = BytesOf(node);
    if (bytes.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the node address ", Quoted(node), " is not numeric"));
    }
    // Such a node did not know its external address when it joined.
    if (IsLoopback(bytes) && !IsLoopback(listens)) {
      return absl::FailedPreconditionError(
          absl::StrCat("a node reported the loopback address ", node,
                       ", from which it cannot connect to MASTER_ADDR ", Quoted(own)));
    }
    made.addresses_.insert(std::move(bytes));
  }
  return made;
}

bool NodeAddresses::Has(const sockaddr_storage& peer) const {
  return addresses_.count(BytesOf(peer)) != 0;
}

std::string AddressText(const sockaddr_storage& address) {
  const std::string bytes = BytesOf(address);
  char text[INET6_ADDRSTRLEN] = "?";
  if (!bytes.empty()) {
    inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
  }
  return text;
}

}  // namespace cadre::agent
