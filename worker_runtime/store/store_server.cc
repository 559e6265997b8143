// The store that rank 0 serves, and the acceptor that authenticates its connections.
#include "worker_runtime/store/store_server.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/peer_user.h"
#include "base/status_macros.h"
#include "base/steady_wait.h"
#include "cadre/status.h"
#include "rendezvous/keyspace/keyspace.h"
#include "rpc/frames/codec.h"
#include "rpc/frames/frame_server.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/sockets/handshake.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/store/call_stream.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::store {
namespace {

constexpr size_t kMaxConnections = 65536;

}  // namespace

// Everything except `stop` and `thread` is used only by the thread, once it runs.
struct StoreServer::State {
  ~State() {
    if (thread.joinable()) {
      const uint64_t one = 1;
      // Writing to an eventfd fails only by EINTR.
      while (write(stop, &one, sizeof(one)) < 0 && errno == EINTR) {
      }
      thread.join();
    }
    // Tells waiting clients that it leaves.
    server.reset();
    if (stop >= 0) close(stop);
  }

  Status Open(ScopedFd listener, const std::string& key);
  int Accept(uint64_t connection);
  void Run();
  Status OnFrame(uint64_t connection, absl::string_view content);
  void Send(const std::vector<keyspace::AddressedReply>& answers);
  std::string FrameFor(uint64_t connection, const rpc::WorkerReply& reply);
  int WaitMs(MonoTime deadline) const;

  int stop = -1;
  uint32_t world_size = 0;
  std::string endpoint;
  keyspace::Keyspace store;
  keyspace::StoreContent stored;
  std::unique_ptr<StoreAcceptor> acceptor;
  std::unique_ptr<frames::FrameServer> server;
  std::map<uint64_t, SealedFrames> sealed;  // of encrypted connections
  std::mutex mutex;
  std::string address_reached ABSL_GUARDED_BY(mutex);
  int clients ABSL_GUARDED_BY(mutex) = 0;
  std::condition_variable client_left;
  std::thread thread;
};

Status StoreServer::State::Open(ScopedFd listener, const std::string& key) {
  ASSIGN_OR_RETURN(const bool encrypts, wire::WantsEncryption());
  endpoint = sockets::EndpointOf(listener);
  stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) return ErrnoToStatus(errno, "cannot make an eventfd");
  ASSIGN_OR_RETURN(acceptor, StoreAcceptor::Open(std::move(listener), {key, encrypts},
                                                 static_cast<int>(world_size)));
  frames::FrameServer::Options options;
  options.name = "rank 0";
  options.max_frame_bytes = rpc::kWorkerFrameBytesMax + (encrypts ? SealedFrames::kMoreBytes : 0);
  options.max_connections = kMaxConnections;
  options.listener = acceptor->fd();
  options.accept = [this](uint64_t connection) { return Accept(connection); };
  options.farewell = [this](uint64_t connection, const absl::Status& why) {
    return FrameFor(connection, rpc::ErrorReply(0, why));
  };
  options.on_frame = [this](uint64_t connection, absl::string_view content) -> absl::Status {
    return OnFrame(connection, content);
  };
  options.on_end = [this](uint64_t connection) {
    store.ForgetPeer(absl::StrCat(connection));
    sealed.erase(connection);
    const std::lock_guard<std::mutex> lock(mutex);
    --clients;
    client_left.notify_all();
  };
  ASSIGN_OR_RETURN(server, frames::FrameServer::Make(std::move(options)));
  thread = std::thread([this] { Run(); });
  return OkStatus();
}

int StoreServer::State::Accept(uint64_t connection) {
  StoreConnection entry = acceptor->Next();
  if (!entry.socket.ok()) return -1;
  if (entry.keys.has_value()) sealed.try_emplace(connection, *std::move(entry.keys));
  const std::string address = sockets::AddressOf(entry.socket.get());
  const std::lock_guard<std::mutex> lock(mutex);
  ++clients;
  if (!sockets::IsLoopback(address)) address_reached = address;
  return entry.socket.Release();
}

void StoreServer::State::Run() {
  pollfd fds[] = {{stop, POLLIN, 0}, {server->fd(), POLLIN, 0}};
  for (;;) {
    const MonoTime next = acceptor->Advance(MonoNow());
    poll(fds, 2, WaitMs(std::min(next, store.NextDeadline())));
    if ((fds[0].revents & POLLIN) != 0) return;
    server->Read();
    Send(store.Expire(MonoNow()));
  }
}

int StoreServer::State::WaitMs(MonoTime deadline) const {
  if (deadline == MonoTime::Never()) return -1;
  const absl::Duration left = absl::Ceil(deadline - MonoNow(), absl::Milliseconds(1));
  return static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(left), 0));
}

Status StoreServer::State::OnFrame(uint64_t connection, absl::string_view content) {
  std::string opened;
  const auto seals = sealed.find(connection);
  if (seals != sealed.end()) {
    ASSIGN_OR_RETURN(opened, seals->second.Open(content));
    content = opened;
  }
  ASSIGN_OR_RETURN(rpc::WorkerCall call, frames::ParseMessage<rpc::WorkerCall>(content));
  auto* asked = std::get_if<rpc::Store>(&call.what);
  if (asked == nullptr) return InvalidArgumentError("rank 0 serves the store alone");
  keyspace::Request request;
  request.client = asked->client;
  request.id = call.id;
  request.rank = asked->rank;
  request.wait_ms = asked->wait_ms;
  request.operation = std::move(asked->operation);
  keyspace::Outcome outcome = store.Execute(MonoNow(), stored, world_size,
                                            {0, absl::StrCat(connection)}, std::move(request));
  if (outcome.change.has_value()) stored.Apply(*std::move(outcome.change));
  Send(outcome.answers);
  return OkStatus();
}

void StoreServer::State::Send(const std::vector<keyspace::AddressedReply>& answers) {
  for (const keyspace::AddressedReply& answer : answers) {
    uint64_t connection = 0;
    if (!absl::SimpleAtoi(answer.requester.peer, &connection)) continue;
    const keyspace::Reply& reply = answer.reply;
    server->Answer(connection, FrameFor(connection, {reply.id, reply.code, reply.message,
                                                     rpc::StoreResult{reply.value, reply.number}}));
  }
}

std::string StoreServer::State::FrameFor(uint64_t connection, const rpc::WorkerReply& reply) {
  std::string frame;
  frames::AppendMessage(reply, &frame);
  const auto seals = sealed.find(connection);
  return seals == sealed.end() ? frame : seals->second.Seal(std::move(frame));
}

Result<std::unique_ptr<StoreServer>> StoreServer::Start(ScopedFd listener, int world_size,
                                                        const std::string& key) {
  auto state = std::make_unique<State>();
  state->world_size = static_cast<uint32_t>(world_size);
  RETURN_IF_ERROR(state->Open(std::move(listener), key));
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(state)));
}

StoreServer::StoreServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
StoreServer::~StoreServer() = default;

const std::string& StoreServer::endpoint() const { return state_->endpoint; }

std::string StoreServer::address_reached() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->address_reached;
}

int StoreServer::refused_rank() const { return state_->acceptor->refused_rank(); }

bool StoreServer::lacked_descriptors() const { return state_->acceptor->lacked_descriptors(); }

bool StoreServer::AwaitAlone(std::chrono::nanoseconds timeout) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return WaitFor(state_->client_left, lock, absl::FromChrono(timeout),
                 [this] { return state_->clients <= 1; });
}

namespace {

// The listener's number in the epoll set of the unauthenticated connections.
constexpr uint64_t kListener = 0;
// The connections that are handled, and accepted, in one call.
constexpr int kMaxReady = 64;
constexpr int kAccepts = 16;
// The pause before this process tries again to open a descriptor.
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

StoreAcceptor::StoreAcceptor(ScopedFd epoll, ScopedFd listener,
                             sockets::HandshakeParameters parameters, int ranks)
    : epoll_(std::move(epoll)),
      listener_(std::move(listener)),
      parameters_(std::move(parameters)),
      room_(static_cast<size_t>(ranks) + kMaxPendingConnections) {}

Result<std::unique_ptr<StoreAcceptor>> StoreAcceptor::Open(ScopedFd listener,
                                                           sockets::HandshakeParameters parameters,
                                                           int ranks) {
  ScopedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.ok()) return ErrnoToStatus(errno, "cannot make an epoll instance");
  std::unique_ptr<StoreAcceptor> acceptor(
      new StoreAcceptor(std::move(epoll), std::move(listener), std::move(parameters), ranks));
  if (!acceptor->Watch(acceptor->listener_.get(), kListener)) {
    return ErrnoToStatus(errno, "cannot wait for ranks");
  }
  return acceptor;
}

bool StoreAcceptor::Watch(int fd, uint64_t number) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

StoreConnection StoreAcceptor::Next() {
  if (authenticated_.empty()) {
    epoll_event events[kMaxReady];
    const int ready = epoll_wait(epoll_.get(), events, kMaxReady, 0);
    for (int i = 0; i < ready; ++i) {
      if (events[i].data.u64 == kListener) {
        Accept();
        continue;
      }
      const auto pending = pending_.find(events[i].data.u64);
      if (pending != pending_.end() && !Serve(pending->second)) pending_.erase(pending);
    }
  }
  if (authenticated_.empty()) return ScopedFd();
  StoreConnection next = std::move(authenticated_.front());
  authenticated_.pop_front();
  return next;
}

void StoreAcceptor::Accept() {
  for (int i = 0; i < kAccepts; ++i) {
    ScopedFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.ok()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      if (errno == EMFILE || errno == ENFILE) lacked_descriptors_ = true;
      if (MakeRoom()) return;
      // Otherwise epoll would report it continuously.
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      pause_until_ = MonoNow() + kPause;
      return;
    }
    // Processes of other users are rejected: they would occupy places for a while, and on a shared
    // machine one may have seen the key.
    if (!MayServe(PeerUserOf(socket.get()))) continue;
    if (pending_.size() >= room_) MakeRoom();
    Result<std::string> nonce = sockets::HandshakeNonce();
    if (!nonce.ok() || !Watch(socket.get(), last_number_ + 1)) continue;
    sockets::ConfigureSocket(socket);
    pending_.emplace(++last_number_,
                     PendingConnection{std::move(socket),
                                       sockets::Handshake::Answer(parameters_, sockets::kStoreRank,
                                                                  INT_MAX, *std::move(nonce)),
                                       MonoNow() + kAuthenticationTimeout, ""});
  }
}

bool StoreAcceptor::MakeRoom() {
  const auto silent = std::find_if(pending_.begin(), pending_.end(),
                                   [](const auto& one) { return one.second.handshake.peer() < 0; });
  if (silent != pending_.end()) {
    pending_.erase(silent);
    return true;
  }
  if (pending_.empty()) return false;
  pending_.erase(pending_.begin());
  return true;
}

bool StoreAcceptor::Serve(PendingConnection& pending) {
  const sockets::HandshakeResult result =
      AdvanceHandshake(pending.socket.get(), pending.handshake, pending.received);
  // A new socket buffers the little that this side sends.
  if (result.progress == sockets::Progress::kWaits) return pending.handshake.output().empty();
  if (result.progress == sockets::Progress::kDone &&
      pending.handshake.purpose() == sockets::Purpose::kStore &&
      pending.handshake.CheckEncryption().ok()) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pending.socket.get(), nullptr);
    authenticated_.push_back({std::move(pending.socket), pending.handshake.MakeRecordKeys()});
  } else if (pending.handshake.peer() >= 0) {
    refused_rank_ = pending.handshake.peer();
  }
  return false;
}

MonoTime StoreAcceptor::Advance(MonoTime now) {
  if (now >= pause_until_) {
    pause_until_ = MonoTime::Never();
    Watch(listener_.get(), kListener);
  }
  while (!pending_.empty() && now >= pending_.begin()->second.give_up) {
    pending_.erase(pending_.begin());
  }
  if (pending_.empty()) return pause_until_;
  return std::min(pause_until_, pending_.begin()->second.give_up);
}

}  // namespace cadre::store
