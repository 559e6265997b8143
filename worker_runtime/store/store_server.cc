#include "worker_runtime/store/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/status.h"
#include "rendezvous/keyspace/keyspace.h"
#include "rpc/frames/frame_server.h"
#include "rpc/frames/messages.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/store/connect_socket.h"

namespace cadre::store {
namespace {

constexpr size_t kMaxConnections = 65536;

std::string FrameOf(const rpc::WorkerReply& reply) {
  std::string frame;
  frames::AppendMessage(reply, &frame);
  return frame;
}

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
    if (listener >= 0) close(listener);
    if (stop >= 0) close(stop);
  }

  Status Open(const std::string& address, const std::string& token);
  void Run();
  Status OnFrame(uint64_t connection, absl::string_view content);
  void Send(const std::vector<keyspace::AnswerTo>& answers);
  int WaitMs() const;

  int stop = -1;
  int listener = -1;
  uint32_t world_size = 0;
  std::string endpoint;
  keyspace::Keyspace store;
  keyspace::Stored stored;
  std::unique_ptr<frames::FrameServer> server;
  std::thread thread;
};

Status StoreServer::State::Open(const std::string& address, const std::string& token) {
  ASSIGN_OR_RETURN(listener, ListenAt(address));
  endpoint = EndpointOf(listener);
  stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) return ErrnoToStatus(errno, "cannot make an eventfd");
  frames::FrameServer::Options options;
  options.name = "rank 0";
  options.token = token;
  options.max_frame_bytes = rpc::kWorkerFrameBytesMax;
  options.max_connections = kMaxConnections;
  options.listener = listener;
  options.accept = [this] {
    return accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  };
  options.farewell = [](const absl::Status& why) { return FrameOf(rpc::ErrorReply(0, why)); };
  options.on_frame = [this](uint64_t connection, absl::string_view content) -> absl::Status {
    return OnFrame(connection, content);
  };
  options.on_end = [this](uint64_t connection) { store.ForgetPeer(absl::StrCat(connection)); };
  ASSIGN_OR_RETURN(server, frames::FrameServer::Make(std::move(options)));
  thread = std::thread([this] { Run(); });
  return OkStatus();
}

void StoreServer::State::Run() {
  pollfd fds[] = {{stop, POLLIN, 0}, {server->fd(), POLLIN, 0}};
  for (;;) {
    poll(fds, 2, WaitMs());
    if ((fds[0].revents & POLLIN) != 0) return;
    server->Read();
    Send(store.Expire(MonoNow()));
  }
}

int StoreServer::State::WaitMs() const {
  const MonoTime deadline = store.NextDeadline();
  if (deadline == MonoTime::Never()) return -1;
  const absl::Duration left = absl::Ceil(deadline - MonoNow(), absl::Milliseconds(1));
  return static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(left), 0));
}

Status StoreServer::State::OnFrame(uint64_t connection, absl::string_view content) {
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
    server->Answer(connection, FrameOf({reply.id, reply.code, reply.message,
                                        rpc::StoreResult{reply.value, reply.number}}));
  }
}

Result<std::unique_ptr<StoreServer>> StoreServer::Start(const std::string& address, int world_size,
                                                        const std::string& token) {
  auto state = std::make_unique<State>();
  state->world_size = static_cast<uint32_t>(world_size);
  RETURN_IF_ERROR(state->Open(address, token));
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(state)));
}

StoreServer::StoreServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
StoreServer::~StoreServer() = default;

const std::string& StoreServer::endpoint() const { return state_->endpoint; }

}  // namespace cadre::store
