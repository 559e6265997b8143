#include "bench/scale/store_load.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/scale/marks.h"
#include "bench/scale/running_job.h"
#include "proto/store.grpc.pb.h"
#include "rpc/channels.h"

namespace cadre {
namespace {

constexpr uint64_t kKeysPerClient = 4;
constexpr size_t kValueBytes = 16;
constexpr size_t kWorkersPerNode = 8;

// The task of all clients at present. Clients that have an answer ask again until it is over.
class Phase {
 public:
  Phase(bool set, size_t clients, size_t depth)
      : set_(set), depth_(depth), left_(clients * depth), next_(clients) {}

  size_t depth() const { return depth_; }

  v1::StoreRequest NextRequest(size_t client) {
    const uint64_t number = next_[client].value++;
    v1::StoreRequest request;
    request.set_job(kLoadJob);
    request.set_generation(1);
    request.set_rank(0);
    request.set_client(client + 1 + (set_ ? depth_ << 32 : 0));
    request.set_request_id(number + 1);
    const std::string key = absl::StrCat("client", client, "/", number % kKeysPerClient);
    if (set_) {
      request.mutable_set()->set_key(key);
      request.mutable_set()->set_value(std::string(kValueBytes, 'v'));
    } else {
      request.set_wait_ms(10000);
      request.mutable_get()->set_key(key);
    }
    return request;
  }

  // Whether the client goes on asking.
  bool Answered(int code) {
    if (code == 0) {
      ++done_;
    } else {
      failed_ = code;
    }
    if (!over_ && code == 0) return true;
    if (--left_ == 0) finished_.Notify();
    return false;
  }

  // Operations each second.
  absl::StatusOr<double> Run(absl::Duration span, const std::function<void()>& begin) {
    const MonoTime start = MonoNow();
    begin();
    absl::SleepFor(span);
    const int64_t done = done_;
    const absl::Duration passed = MonoNow() - start;
    over_ = true;
    if (!finished_.WaitForNotificationWithTimeout(kLoadPatience)) {
      return absl::DeadlineExceededError("store operations without an answer");
    }
    if (failed_ != 0) {
      return absl::InternalError(
          absl::StrCat("a store operation ended with code ", failed_.load()));
    }
    return static_cast<double>(done) / absl::ToDoubleSeconds(passed);
  }

 private:
  struct alignas(64) Counter {
    std::atomic<uint64_t> value{0};
  };
  const bool set_;
  const size_t depth_;
  std::atomic<bool> over_{false};
  std::atomic<int64_t> done_{0};
  std::atomic<int> failed_{0};
  std::atomic<size_t> left_;
  std::vector<Counter> next_;
  absl::Notification finished_;
};

// A client's connection.
class DirectClient {
 public:
  DirectClient(const ServerAddress& server, size_t number) : token_(server.token), number_(number) {
    grpc::ChannelArguments arguments = rpc::ClientChannelArguments();
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::Store::NewStub(
        grpc::CreateCustomChannel(server.endpoint, server.Credentials(), arguments));
  }

  void Ask(Phase& phase) {
    struct Call {
      grpc::ClientContext context;
      v1::StoreRequest request;
      v1::StoreReply reply;
    };
    auto* call = new Call();
    call->context.AddMetadata(rpc::kTokenMetadata, token_);
    call->request = phase.NextRequest(number_);
    stub_->async()->Execute(&call->context, &call->request, &call->reply,
                            [this, call, &phase](const grpc::Status& status) {
                              const int code = status.ok() ? call->reply.code()
                                                           : static_cast<int>(status.error_code());
                              delete call;
                              if (phase.Answered(code)) Ask(phase);
                            });
  }

 private:
  const std::string token_;
  const size_t number_;
  std::unique_ptr<v1::Store::Stub> stub_;
};

// Workers of nodes, eight of each, whose requests go out on their nodes' streams.
class StreamClients {
 public:
  explicit StreamClients(size_t clients)
      : of_each_(std::min(clients, kWorkersPerNode)), nodes_(clients / of_each_) {}

  size_t nodes() const { return nodes_; }
  uint32_t of_each() const { return static_cast<uint32_t>(of_each_); }

  void Use(Fleet* fleet) { fleet_ = fleet; }
  void Ask(size_t client, Phase& phase) {
    phase_ = &phase;
    v1::NodeMessage message;
    *message.mutable_store() = phase.NextRequest(client);
    fleet_->Send(client / of_each_, std::move(message));
  }
  void Hear(const v1::ServerMessage& message) {
    if (!message.has_store()) return;
    const size_t client = (message.store().client() & 0xffffffff) - 1;
    Phase& phase = *phase_;
    if (phase.Answered(message.store().code())) Ask(client, phase);
  }

 private:
  const size_t of_each_;
  const size_t nodes_;
  Fleet* fleet_ = nullptr;
  std::atomic<Phase*> phase_{nullptr};
};

// Sets one by one, gets one by one, sets without waiting; `ask` lets a client ask once.
absl::StatusOr<nlohmann::json> RunPhases(const StoreLoadOptions& options,
                                         const std::function<void(size_t, Phase&)>& ask,
                                         std::vector<std::unique_ptr<Phase>>* phases) {
  nlohmann::json figures;
  const auto run = [&](const char* name, bool set, size_t depth) -> absl::Status {
    phases->push_back(std::make_unique<Phase>(set, options.clients, depth));
    Phase& phase = *phases->back();
    ASSIGN_OR_RETURN(const double rate, phase.Run(options.span, [&] {
      for (size_t i = 0; i < options.clients * depth; ++i) {
        ask(i % options.clients, phase);
      }
    }));
    figures[name] = rate;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(run("set_per_s", true, 1));
  RETURN_IF_ERROR(run("get_per_s", false, 1));
  RETURN_IF_ERROR(
      run("set_not_awaited_per_s", true, std::min(kPipelineDepth, kPipelineAll / options.clients)));
  return figures;
}

}  // namespace

absl::StatusOr<nlohmann::json> MeasureDirectStore(const StoreLoadOptions& options) {
  std::vector<std::unique_ptr<Phase>> phases;
  ASSIGN_OR_RETURN(const auto job, RunningJob::Start(options.server, 1, kWorkersPerNode));
  std::vector<std::unique_ptr<DirectClient>> clients;
  for (size_t i = 0; i < options.clients; ++i) {
    clients.push_back(std::make_unique<DirectClient>(options.server, i));
  }
  return RunPhases(
      options, [&](size_t client, Phase& phase) { clients[client]->Ask(phase); }, &phases);
}

absl::StatusOr<nlohmann::json> MeasureStreamStore(const StoreLoadOptions& options) {
  std::vector<std::unique_ptr<Phase>> phases;
  StreamClients clients(options.clients);
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, clients.nodes(), clients.of_each()));
  clients.Use(&job->fleet());
  job->Observe([&](size_t, const v1::ServerMessage& message) { clients.Hear(message); });
  absl::StatusOr<nlohmann::json> figures = RunPhases(
      options, [&](size_t client, Phase& phase) { clients.Ask(client, phase); }, &phases);
  job->Observe(nullptr);
  return figures;
}

absl::StatusOr<nlohmann::json> MeasureBareStore(const StoreLoadOptions& options) {
  std::vector<std::unique_ptr<Phase>> phases;
  StreamClients clients(options.clients);
  Marks welcomed(clients.nodes());
  FleetOptions nodes;
  nodes.server = options.server;
  nodes.job = kLoadJob;
  nodes.agents = clients.nodes();
  nodes.slots = clients.of_each();
  Fleet fleet(nodes, [&](size_t node, const v1::ServerMessage& message) {
    if (message.has_welcome()) welcomed.Mark(node);
    clients.Hear(message);
  });
  clients.Use(&fleet);
  fleet.Connect();
  if (!welcomed.WaitForAll(kLoadPatience)) return LateError("joined", welcomed, fleet);
  return RunPhases(
      options, [&](size_t client, Phase& phase) { clients.Ask(client, phase); }, &phases);
}

}  // namespace cadre
