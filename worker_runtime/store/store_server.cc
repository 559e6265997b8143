#include "worker_runtime/store/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
#include "base/status_macros.h"
#include "base/steady_wait.h"
#include "cadre/status.h"
#include "rendezvous/keyspace/keyspace.h"
#include "rpc/frames/frame_server.h"
#include "rpc/frames/messages.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/store/addresses.h"
#include "worker_runtime/store/gate.h"
#include "worker_runtime/store/sealed_frames.h"
#include "worker_runtime/wire/encryption.h"

namespace cadre::store {
namespace {

constexpr size_t kMaxConnections = 65536;

}  // namespace

// All but `stop` and `thread` is the thread's, once it runs.
struct StoreServer::State {
  ~State() {
    if (thread.joinable()) {
      const uint64_t one = 1;
      // An eventfd takes it.
      while (write(stop, &one, sizeof(one)) < 0 && errno == EINTR) {
      }
      thread.join();
    }
    // Says to those who wait that it leaves.
    server.reset();
    if (stop >= 0) close(stop);
  }

  Status Open(ScopedFd listener, const std::string& key);
  int Accept(uint64_t connection);
  void Run();
  Status OnFrame(uint64_t connection, absl::string_view content);
  void Send(const std::vector<keyspace::AnswerTo>& answers);
  std::string FrameFor(uint64_t connection, const rpc::WorkerReply& reply);
  int WaitMs(MonoTime deadline) const;

  int stop = -1;
  uint32_t world_size = 0;
  std::string endpoint;
  keyspace::Keyspace store;
  keyspace::Stored stored;
  std::unique_ptr<Gate> gate;
  std::unique_ptr<frames::FrameServer> server;
  std::map<uint64_t, SealedFrames> sealed;  // those that are encrypted
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
  ASSIGN_OR_RETURN(gate,
                   Gate::Open(std::move(listener), {key, encrypts}, static_cast<int>(world_size)));
  frames::FrameServer::Options options;
  options.name = "rank 0";
  options.max_frame_bytes = rpc::kWorkerFrameBytesMax + (encrypts ? SealedFrames::kMoreBytes : 0);
  options.max_connections = kMaxConnections;
  options.listener = gate->fd();
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
  Entry entry = gate->Next();
  if (!entry.socket.ok()) return -1;
  if (entry.keys.has_value()) sealed.try_emplace(connection, *std::move(entry.keys));
  const std::string address = sockets::AddressOf(entry.socket.get());
  const std::lock_guard<std::mutex> lock(mutex);
  ++clients;
  if (!IsLoopback(address)) address_reached = address;
  return entry.socket.Release();
}

void StoreServer::State::Run() {
  pollfd fds[] = {{stop, POLLIN, 0}, {server->fd(), POLLIN, 0}};
  for (;;) {
    const MonoTime next = gate->Advance(MonoNow());
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

void StoreServer::State::Send(const std::vector<keyspace::AnswerTo>& answers) {
  for (const keyspace::AnswerTo& answer : answers) {
    uint64_t connection = 0;
    if (!absl::SimpleAtoi(answer.asker.peer, &connection)) continue;
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

int StoreServer::refused_rank() const { return state_->gate->refused_rank(); }

bool StoreServer::lacked_descriptors() const { return state_->gate->lacked_descriptors(); }

bool StoreServer::AwaitAlone(std::chrono::nanoseconds patience) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return WaitFor(state_->client_left, lock, absl::FromChrono(patience),
                 [this] { return state_->clients <= 1; });
}

}  // namespace cadre::store
