#include "agent/local/local_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "agent/local/local_directory.h"
#include "agent/local/store_sockets.h"
#include "agent/local/worker_calls.h"
#include "base/status_macros.h"
#include "base/thread_room.h"
#include "proto/store.grpc.pb.h"
#include "rpc/channel_arguments.h"

namespace cadre {
namespace {

constexpr std::chrono::milliseconds kShutdownLimit{100};

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

class StoreService;

// One operation of a worker. Whoever takes it out of the service's map finishes it.
class StoreCall final : public grpc::ServerUnaryReactor {
 public:
  StoreCall(StoreService& service, const v1::StoreRequest& request, v1::StoreReply* reply)
      : service_(service), key_(request.client(), request.request_id()), reply_(reply) {}

  void OnCancel() override;
  void OnDone() override { delete this; }
  void Answer(const v1::StoreReply& reply);
  const std::pair<uint64_t, uint64_t>& key() const { return key_; }

 private:
  StoreService& service_;
  const std::pair<uint64_t, uint64_t> key_;
  v1::StoreReply* const reply_;
};

class StoreService final : public v1::Store::CallbackService {
 public:
  StoreService(const LocalService::Options& options, std::string token)
      : options_(options), token_(std::move(token)) {}

  grpc::ServerUnaryReactor* Execute(grpc::CallbackServerContext* context,
                                    const v1::StoreRequest* request,
                                    v1::StoreReply* reply) override {
    auto* call = new StoreCall(*this, *request, reply);
    if (!KnowsToken(*context, token_)) {
      call->Finish(WrongToken());
      return call;
    }
    if (!Remember(call)) {
      call->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                absl::StrCat("this agent already has ", kMaxLocalCalls,
                                             " store operations waiting; try again later")));
      return call;
    }
    const absl::Status taken = options_.on_request(*request);
    if (!taken.ok() && Forget(call)) call->Finish(ToGrpc(taken));
    return call;
  }

  void Answer(const v1::StoreReply& reply) {
    for (StoreCall* call : Take({reply.client(), reply.request_id()})) call->Answer(reply);
  }

  void FinishAll(const grpc::Status& status) {
    for (StoreCall* call : TakeAll()) call->Finish(status);
  }

  // False when somebody else finishes it.
  bool Forget(StoreCall* call) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto range = calls_.equal_range(call->key());
    for (auto it = range.first; it != range.second; ++it) {
      if (it->second != call) continue;
      calls_.erase(it);
      return true;
    }
    return false;
  }

 private:
  using Key = std::pair<uint64_t, uint64_t>;

  bool Remember(StoreCall* call) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || calls_.size() >= kMaxLocalCalls) return false;
    calls_.emplace(call->key(), call);
    return true;
  }

  std::vector<StoreCall*> Take(const Key& key) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::vector<StoreCall*> taken;
    const auto range = calls_.equal_range(key);
    for (auto it = range.first; it != range.second; ++it) taken.push_back(it->second);
    calls_.erase(range.first, range.second);
    return taken;
  }

  std::vector<StoreCall*> TakeAll() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    std::vector<StoreCall*> taken;
    for (const auto& [key, call] : calls_) taken.push_back(call);
    calls_.clear();
    return taken;
  }

  const LocalService::Options& options_;
  const std::string token_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // A repeated request waits beside the first one.
  std::multimap<Key, StoreCall*> calls_ ABSL_GUARDED_BY(mutex_);
};

void StoreCall::OnCancel() {
  if (service_.Forget(this)) Finish(grpc::Status::CANCELLED);
}

void StoreCall::Answer(const v1::StoreReply& reply) {
  *reply_ = reply;
  // Only an OK status carries a body, and a failed compare-and-set returns what it found.
  const bool in_body = reply.code() == 0 || !reply.value().empty();
  Finish(in_body ? grpc::Status::OK
                 : grpc::Status(static_cast<grpc::StatusCode>(reply.code()), reply.message()));
}

}  // namespace

struct LocalService::State {
  State(Options o, std::unique_ptr<LocalDirectory> d, std::unique_ptr<StoreSockets> s)
      : options(std::move(o)),
        directory(std::move(d)),
        worker_calls({options.job, options.address, directory->token(), options.on_event}),
        store(options, directory->token()),
        sockets(std::move(s)) {}

  const Options options;
  const std::unique_ptr<LocalDirectory> directory;
  WorkerCalls worker_calls;
  StoreService store;
  const std::unique_ptr<StoreSockets> sockets;
  std::unique_ptr<grpc::Server> server;  // once a worker has connected
};

absl::StatusOr<std::unique_ptr<LocalService>> LocalService::Open(Options options) {
  ASSIGN_OR_RETURN(std::unique_ptr<LocalDirectory> directory,
                   options.directory.empty() ? LocalDirectory::Make(options.parent)
                                             : LocalDirectory::Adopt(options.directory));
  ASSIGN_OR_RETURN(std::unique_ptr<StoreSockets> sockets,
                   StoreSockets::Make(directory->token(), directory->store_listener(),
                                      [d = directory.get()] { return d->AcceptStore(); }));
  return std::unique_ptr<LocalService>(new LocalService(
      std::make_unique<State>(std::move(options), std::move(directory), std::move(sockets))));
}

LocalService::LocalService(std::unique_ptr<State> state) : state_(std::move(state)) {}

LocalService::~LocalService() {
  if (state_->server == nullptr) return;
  const grpc::Status leaving(grpc::StatusCode::UNAVAILABLE, "the agent is leaving");
  state_->store.FinishAll(leaving);
  state_->worker_calls.FinishAll(leaving);
  state_->server->Shutdown(std::chrono::system_clock::now() + kShutdownLimit);
}

int LocalService::fd() const { return state_->directory->listener(); }
void LocalService::KeepDirectory() { state_->directory->Keep(); }

const std::string& LocalService::directory() const { return state_->directory->path(); }
std::string LocalService::socket_path() const { return state_->directory->socket_path(); }
std::string LocalService::token_path() const { return state_->directory->token_path(); }
const std::string& LocalService::token() const { return state_->directory->token(); }

int LocalService::store_fd() const { return state_->sockets->fd(); }
std::vector<v1::StoreRequest> LocalService::ReadStore() { return state_->sockets->Read(); }

absl::Status LocalService::Accept() {
  for (int fd = state_->directory->Accept(); fd >= 0; fd = state_->directory->Accept()) {
    if (state_->server == nullptr) {
      const absl::Status room = CheckThreadRoom(kGrpcThreads);
      if (!room.ok()) {
        close(fd);
        return room;
      }
      // gRPC would write to the terminal of the workers.
      QuietGrpcLog();
      grpc::ServerBuilder builder;
      builder.RegisterService(&state_->worker_calls);
      builder.RegisterService(&state_->store);
      // Also says how often workers may ping, without which a long wait ends with too_many_pings.
      SetServerArguments(builder);
      state_->server = builder.BuildAndStart();
    }
    grpc::AddInsecureChannelFromFd(state_->server.get(), fd);
  }
  return absl::OkStatus();
}

void LocalService::BeginGeneration(uint64_t generation, const v1::Assign& assign, bool in_place,
                                   const std::set<uint32_t>& kept,
                                   const std::map<uint64_t, uint32_t>& places) {
  state_->worker_calls.Begin(generation, assign, in_place, kept, places);
}

bool LocalService::WouldStandBy() const { return state_->worker_calls.WouldStandBy(); }

std::set<uint64_t> LocalService::StandingBy() const { return state_->worker_calls.StandingBy(); }

void LocalService::EndGeneration(const std::set<uint32_t>& kept, const std::string& reason) {
  state_->worker_calls.End(kept, reason);
}

void LocalService::Answer(const v1::StoreReply& reply) {
  state_->store.Answer(reply);
  state_->sockets->Answer(reply);
}

}  // namespace cadre
