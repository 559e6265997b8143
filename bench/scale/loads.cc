#include "bench/scale/loads.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/scale/fleet.h"
#include "proto/store.grpc.pb.h"
#include "rpc/channels.h"

namespace cadre {
namespace {

FleetOptions FleetOf(const LoadOptions& options) {
  FleetOptions fleet;
  fleet.server = options.server;
  fleet.job = kLoadJob;
  fleet.agents = options.agents;
  fleet.slots = options.slots;
  return fleet;
}

nlohmann::json Spread(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {{"p50", Percentile(samples, 0.5)},
          {"p99", Percentile(samples, 0.99)},
          {"max", samples.back()},
          {"samples", samples.size()}};
}

void Append(const std::vector<double>& more, std::vector<double>* samples) {
  samples->insert(samples->end(), more.begin(), more.end());
}

// A rank's request on its node's stream, which waits.
v1::NodeMessage StoreMessage(uint32_t rank, uint64_t request_id) {
  v1::NodeMessage message;
  v1::StoreRequest* request = message.mutable_store();
  request->set_job(kLoadJob);
  request->set_generation(1);
  request->set_rank(static_cast<int32_t>(rank));
  request->set_client(rank + 1);
  request->set_request_id(request_id);
  request->set_wait_ms(60000);
  return message;
}

// One mark for each rank whose first request was answered.
Fleet::Observer MarkAnswers(Marks* answered, std::atomic<int>* refused) {
  return [answered, refused](size_t, const v1::ServerMessage& message) {
    if (!message.has_store() || message.store().request_id() != 1) return;
    if (message.store().code() != 0) ++*refused;
    answered->Mark(message.store().client() - 1);
  };
}

absl::Status Refused(int ranks) {
  if (ranks == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(ranks, " ranks were refused"));
}

// One failure of a running job, as its agents see it.
struct Round {
  explicit Round(size_t agents) : stopped(agents), assigned(agents), running(agents) {}
  Marks stopped, assigned, running;
};

}  // namespace

absl::StatusOr<nlohmann::json> MeasureJoin(const LoadOptions& options) {
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, options.agents, options.slots));
  return nlohmann::json{{"joined_ms", job->joined_ms()},
                        {"assigned_ms", job->assigned_ms()},
                        {"all_running_ms", job->running_ms()}};
}

absl::StatusOr<nlohmann::json> MeasureBareJoin(const LoadOptions& options) {
  Marks answered(options.agents);
  Fleet fleet(FleetOf(options),
              [&](size_t agent, const v1::ServerMessage&) { answered.Mark(agent); });
  const MonoTime start = MonoNow();
  fleet.Connect();
  if (!answered.WaitForAll(kLoadTimeout)) return LateError("joined", answered, fleet);
  return nlohmann::json{{"joined_ms", answered.LastMillisSince(start)}};
}

absl::StatusOr<nlohmann::json> MeasureBroadcast(const LoadOptions& options) {
  std::deque<Round> rounds;  // outlive the job, whose streams use them
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, options.agents, options.slots));
  std::vector<double> stop, again;
  for (int i = 0; i < options.rounds; ++i) {
    const uint64_t generation = static_cast<uint64_t>(i) + 1;
    Round& round = rounds.emplace_back(options.agents);
    job->Observe(
        [&round, generation, world = job->world()](size_t agent, const v1::ServerMessage& message) {
          if (message.has_stop() && message.generation() == generation) round.stopped.Mark(agent);
          if (message.generation() != generation + 1) return;
          if (message.has_assign()) round.assigned.Mark(agent);
          if (message.has_status() && message.status().workers_running() == world) {
            round.running.Mark(agent);
          }
        });
    v1::NodeMessage failed;
    failed.mutable_worker_exited()->mutable_exit()->set_exit_code(1);
    failed.mutable_worker_exited()->set_cause(v1::CRASH);
    const MonoTime start = MonoNow();
    job->fleet().Send(static_cast<size_t>(i) % options.agents, std::move(failed));
    for (const auto& [what, marks] :
         {std::pair("stopped", &round.stopped), std::pair("assigned again", &round.assigned),
          std::pair("running again", &round.running)}) {
      if (!marks->WaitForAll(kLoadTimeout)) return LateError(what, *marks, job->fleet());
    }
    Append(round.stopped.SortedMillisSince(start), &stop);
    again.push_back(round.assigned.LastMillisSince(start));
  }
  return nlohmann::json{{"stop_ms", Spread(stop)}, {"all_assigned_again_ms", Spread(again)}};
}

absl::StatusOr<nlohmann::json> MeasureBareBroadcast(const LoadOptions& options) {
  Marks answered(options.agents);
  std::deque<Marks> rounds;
  std::atomic<Marks*> stopped{nullptr};
  Fleet fleet(FleetOf(options), [&](size_t agent, const v1::ServerMessage& message) {
    answered.Mark(agent);
    if (message.has_stop()) stopped.load()->Mark(agent);
  });
  fleet.Connect();
  if (!answered.WaitForAll(kLoadTimeout)) return LateError("joined", answered, fleet);
  std::vector<double> stop;
  for (int round = 0; round < options.rounds; ++round) {
    Marks& marks = rounds.emplace_back(options.agents);
    stopped = &marks;
    v1::NodeMessage cancel;
    cancel.mutable_cancel()->set_reason("rank 0 (local rank 0) on node0 exited with status 1");
    const MonoTime start = MonoNow();
    fleet.Send(static_cast<size_t>(round) % options.agents, std::move(cancel));
    if (!marks.WaitForAll(kLoadTimeout)) return LateError("told", marks, fleet);
    Append(marks.SortedMillisSince(start), &stop);
  }
  return nlohmann::json{{"stop_ms", Spread(stop)}};
}

absl::StatusOr<nlohmann::json> MeasureIds(const LoadOptions& options) {
  const uint32_t world = static_cast<uint32_t>(options.agents) * options.slots;
  Marks answered(world);
  std::atomic<int> refused{0};
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, options.agents, options.slots));
  job->Observe(MarkAnswers(&answered, &refused));
  const MonoTime first = MonoNow();
  for (uint32_t rank = 0; rank < world; ++rank) {
    v1::NodeMessage get = StoreMessage(rank, 1);
    get.mutable_store()->mutable_get_id()->set_communicator("world");
    job->fleet().Send(rank / options.slots, std::move(get));
    if (rank != world / 2) continue;
    v1::NodeMessage publish = StoreMessage(0, 2);
    publish.mutable_store()->mutable_publish_id()->set_communicator("world");
    publish.mutable_store()->mutable_publish_id()->set_id(std::string(128, 'i'));
    job->fleet().Send(0, std::move(publish));
  }
  const MonoTime last = MonoNow();
  if (!answered.WaitForAll(kLoadTimeout)) return LateError("answered", answered, job->fleet());
  RETURN_IF_ERROR(Refused(refused));
  return nlohmann::json{{"ranks", world},
                        {"from_first_request_ms", answered.LastMillisSince(first)},
                        {"from_last_request_ms", answered.LastMillisSince(last)}};
}

absl::StatusOr<nlohmann::json> MeasureJoinAndBarrier(const LoadOptions& options) {
  const uint32_t world = static_cast<uint32_t>(options.agents) * options.slots;
  Marks left(world);
  std::atomic<int> refused{0};
  const Fleet::Observer mark = MarkAnswers(&left, &refused);
  Fleet* all = nullptr;
  Fleet fleet(FleetOf(options), [&](size_t agent, const v1::ServerMessage& message) {
    mark(agent, message);
    if (!message.has_assign()) return;
    for (uint32_t i = 0; i < message.assign().local_world_size(); ++i) {
      v1::NodeMessage enter = StoreMessage(message.assign().first_rank() + i, 1);
      enter.mutable_store()->mutable_barrier()->set_name("start");
      all->Send(agent, std::move(enter));
    }
  });
  all = &fleet;
  const MonoTime start = MonoNow();
  fleet.Connect();
  if (!left.WaitForAll(kLoadTimeout)) return LateError("through the barrier", left, fleet);
  RETURN_IF_ERROR(Refused(refused));
  return nlohmann::json{{"ranks", world}, {"ms", left.LastMillisSince(start)}};
}

absl::StatusOr<nlohmann::json> MeasureIdle(const LoadOptions& options, int process) {
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, options.agents, options.slots));
  // Joining is over, and each has renewed once.
  absl::SleepFor(kRenewInterval);
  ASSIGN_OR_RETURN(const ProcessCost before, CostOf(process));
  const MonoTime start = MonoNow();
  absl::SleepFor(options.span);
  ASSIGN_OR_RETURN(const ProcessCost after, CostOf(process));
  const absl::Duration passed = MonoNow() - start;
  const std::string broken = job->fleet().broken();
  if (!broken.empty()) return absl::InternalError(broken);
  return nlohmann::json{
      {"resident_mib", static_cast<double>(after.resident_bytes) / (1 << 20)},
      {"peak_mib", static_cast<double>(after.peak_bytes) / (1 << 20)},
      {"threads", after.threads},
      {"core_percent", 100 * absl::FDivDuration(after.processor - before.processor, passed)}};
}

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
    if (!finished_.WaitForNotificationWithTimeout(kLoadTimeout)) {
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
  void OnMessage(const v1::ServerMessage& message) {
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
  job->Observe([&](size_t, const v1::ServerMessage& message) { clients.OnMessage(message); });
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
    clients.OnMessage(message);
  });
  clients.Use(&fleet);
  fleet.Connect();
  if (!welcomed.WaitForAll(kLoadTimeout)) return LateError("joined", welcomed, fleet);
  return RunPhases(
      options, [&](size_t client, Phase& phase) { clients.Ask(client, phase); }, &phases);
}

absl::StatusOr<ProcessCost> CostOf(int process) {
  ProcessCost cost;
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    words >> name >> value;
    if (name == "VmRSS:") cost.resident_bytes = value * 1024;
    if (name == "VmHWM:") cost.peak_bytes = value * 1024;
    if (name == "Threads:") cost.threads = value;
  }
  std::ifstream stat(absl::StrCat("/proc/", process, "/stat"));
  std::getline(stat, line);
  const size_t after_name = line.rfind(')');
  if (cost.threads == 0 || after_name == std::string::npos) {
    return absl::NotFoundError(absl::StrCat("there is no process ", process));
  }
  std::istringstream fields(line.substr(after_name + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  cost.processor = absl::Seconds(user + system) / sysconf(_SC_CLK_TCK);
  return cost;
}

}  // namespace cadre
