#include "agent/torch_store/torch_store_server.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/torch_store/answer_queue.h"
#include "agent/torch_store/torch_request_reader.h"
#include "base/clock.h"
#include "base/peer_user.h"
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

// Numbers of what is no connection.
constexpr uint64_t kListener = 0, kWakeUp = 1;
// Connections that one Serve looks at, those that it lets in, and bytes that it reads of each; the
// others' turn is the next.
constexpr int kMaxEvents = 256, kMaxAccepted = 256;
constexpr size_t kReadBytes = 64 << 10;
// After there was no descriptor for a connection.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

absl::Status NotOfThisProtocol() {
  return absl::InvalidArgumentError("its first message is not that of PyTorch 2.1 or newer");
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
  // What the budget has for the request that is not complete.
  size_t unfinished_bytes = 0;
  uint32_t watched = EPOLLIN;
  bool validated = false;
  bool has_answers = false;  // of this event
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
  if (!unproven_.empty()) next = std::min(next, unproven_.front().first);
  if (accept_at_ != MonoTime()) next = std::min(next, accept_at_);
  return next;
}

void TorchStoreServer::Serve(absl::Duration limit) {
  const absl::Duration wait = std::min(limit, NextDeadline() - MonoNow());
  int wait_ms = -1;
  // Rounded up, so that what is due is due then.
  if (wait != absl::InfiniteDuration()) {
    wait_ms = static_cast<int>(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(wait + absl::Microseconds(999)), 0, 1 << 30));
  }
  epoll_event events[kMaxEvents];
  const int ready = epoll_wait(epoll_.get(), events, kMaxEvents, wait_ms);
  const MonoTime now = MonoNow();
  for (int i = 0; i < ready; ++i) OnEvent(events[i].data.u64, events[i].events, now);
  CloseWhatIsDue(now);
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
      Admit(std::move(socket), peer, now);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      SayOnce(kNoDescriptors,
              absl::StrCat("cannot take one more connection than its ", connections_.size(), ": ",
                           absl::ErrnoToStatus(errno, "accept").message(),
                           "; raise the limit of open files (ulimit -n)"));
      Watch(options_.listener.get(), kListener, 0, false);
      accept_at_ = now + kAcceptPause;
      return;
    }
    // One that was gone before it was taken is nobody's fault.
    if (errno != EINTR && errno != ECONNABORTED) return;
  }
}

void TorchStoreServer::Admit(ScopedFd socket, const sockaddr_storage& peer, MonoTime now) {
  std::string address = AddressText(peer);
  if (!options_.nodes.Has(peer)) {
    return SayOnce(kStranger,
                   absl::StrCat("refused a connection from ", address,
                                ", which is no node of this generation; if it is one, "
                                "--no-agent-store lets rank 0 serve in the agent's place"));
  }
  // Of this machine's processes those of the job's user alone: its address is everybody's here.
  const PeerUser user = PeerUserOf(socket.get());
  if (!MayServe(user)) {
    // One that has gone asks for nothing.
    if (user.where == PeerUser::Where::kGone) return;
    return SayOnce(kOtherUser,
                   absl::StrCat("refused a connection from ", UserText(user),
                                " on this machine: these keys are for those of the job's user"));
  }
  if (connections_.size() >= options_.max_connections) {
    return SayOnce(kTooMany, absl::StrCat("has ", options_.max_connections,
                                          " connections already; refused one from ", address));
  }
  const uint64_t number = ++last_number_;
  if (!Watch(socket.get(), number, EPOLLIN, true)) return;
  connections_.emplace(number, std::make_unique<Connection>(number, std::move(socket),
                                                            std::move(address), &budget_));
  unproven_.emplace_back(now + options_.validation_time, number);
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
    if (!complete.ok() && !connection.validated) return NotOfThisProtocol();
    if (!complete.ok()) return complete.status();
    if (!*complete) break;
    RETURN_IF_ERROR(Take(connection, std::move(request), now));
  }
  const size_t unfinished = connection.reader.held_bytes();
  budget_.Give(std::exchange(connection.unfinished_bytes, 0));
  if (!budget_.Fits(unfinished)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it holds ", budget_.limit() >> 20, " MiB already"));
  }
  budget_.Take(connection.unfinished_bytes = unfinished);
  return absl::OkStatus();
}

absl::Status TorchStoreServer::Take(Connection& connection, TorchRequest request, MonoTime now) {
  budget_.Give(std::exchange(connection.unfinished_bytes, 0));
  const bool validates = request.op == TorchOp::kValidate && request.number == kTorchMagic;
  if (!connection.validated) {
    connection.validated = validates;
    if (validates) return absl::OkStatus();
    return NotOfThisProtocol();
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
      Close(number, absl::ResourceExhaustedError(
                        absl::StrCat("it holds ", budget_.limit() >> 20,
                                     " MiB already, and has no room for an answer")));
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
  const Complaint what = absl::IsResourceExhausted(why)  ? kNoRoom
                         : absl::IsDeadlineExceeded(why) ? kSilent
                                                         : kGarbage;
  if (!why.message().empty()) {
    SayOnce(what,
            absl::StrCat("closed the connection from ", found->second->peer, ": ", why.message()));
  }
  budget_.Give(found->second->unfinished_bytes);
  keys_.Forget(number);
  connections_.erase(found);
}

void TorchStoreServer::StopWaits() {
  stopped_at_ = MonoNow();
  stop_waits_at_ = stopped_at_ + options_.stop_patience;
}

void TorchStoreServer::CloseWhatIsDue(MonoTime now) {
  while (!unproven_.empty()) {
    const auto [deadline, number] = unproven_.front();
    const auto found = connections_.find(number);
    const bool silent = found != connections_.end() && !found->second->validated;
    if (silent && deadline > now) break;
    unproven_.pop_front();
    if (silent) {
      Close(number,
            absl::DeadlineExceededError(absl::StrCat(
                "it has said nothing for ", absl::FormatDuration(options_.validation_time))));
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

void TorchStoreServer::SayOnce(Complaint what, const std::string& line) {
  if (std::exchange(said_[what], true)) return;
  options_.say(absl::StrCat("the store that this agent serves to PyTorch ", line));
}

}  // namespace cadre::agent
