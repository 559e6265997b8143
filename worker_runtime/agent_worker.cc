#include "worker_runtime/agent_worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"
#include "base/status_macros.h"
#include "proto/local.pb.h"
#include "proto/store.pb.h"
#include "worker_runtime/agent_channel.h"
#include "worker_runtime/progress_writer.h"

namespace cadre {
namespace {

// Of what is said about a generation that is given up.
constexpr size_t kMaxReasonBytes = 512;

uint64_t RandomId() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

absl::Status CheckKey(absl::string_view what, absl::string_view key) {
  if (!key.empty() && key.size() <= kMaxStoreKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", key.size(), " bytes; it must have 1 to ", kMaxStoreKeyBytes));
}

absl::Status CheckValue(absl::string_view key, absl::string_view value) {
  if (value.size() <= kMaxStoreValueBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the value for \"", key, "\" has ", value.size(),
                                                 " bytes; at most ", kMaxStoreValueBytes,
                                                 " fit into the store"));
}

// Says which call failed; the code stays.
absl::Status Annotate(const absl::Status& status, absl::string_view call, absl::string_view key) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(call, "(\"", key, "\"): ", status.message()));
}

class AgentWorker : public Worker {
 public:
  AgentWorker(const WorkerEnvironment& environment, const AgentWorkerOptions& options)
      : options_(options),
        environment_(environment),
        channel_(environment.agent_socket, environment.token),
        client_(RandomId()),
        progress_(environment.progress_fd) {}

  ~AgentWorker() override {
    end_context_.TryCancel();
    if (end_thread_.joinable()) end_thread_.join();
  }

  absl::Status Hello();
  // The worker that this process is from now on, after it has stood by.
  absl::StatusOr<std::unique_ptr<Worker>> TakePlace();

  const WorkerPlace& place() const override { return place_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    RETURN_IF_ERROR(CheckKey("a key", key));
    RETURN_IF_ERROR(CheckValue(key, value));
    v1::StoreRequest request;
    request.mutable_set()->set_key(std::string(key));
    request.mutable_set()->set_value(std::string(value));
    return Annotate(Execute(std::move(request)).status(), "Set", key);
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    RETURN_IF_ERROR(CheckKey("a key", key));
    v1::StoreRequest request;
    request.mutable_get()->set_key(std::string(key));
    return Value(Execute(std::move(request), timeout), "Get", key);
  }

  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override {
    RETURN_IF_ERROR(CheckKey("a key", key));
    v1::StoreRequest request;
    request.mutable_add()->set_key(std::string(key));
    request.mutable_add()->set_delta(delta);
    const absl::StatusOr<v1::StoreReply> reply = Execute(std::move(request));
    if (!reply.ok()) return Annotate(reply.status(), "Add", key);
    return reply->number();
  }

  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired) override;

  absl::Status Delete(absl::string_view key) override {
    RETURN_IF_ERROR(CheckKey("a key", key));
    v1::StoreRequest request;
    request.mutable_delete_()->set_key(std::string(key));
    return Annotate(Execute(std::move(request)).status(), "Delete", key);
  }

  absl::Status Barrier(absl::string_view name, absl::Duration timeout) override {
    RETURN_IF_ERROR(CheckKey("a barrier's name", name));
    v1::StoreRequest request;
    request.mutable_barrier()->set_name(std::string(name));
    return Annotate(Execute(std::move(request), timeout).status(), "Barrier", name);
  }

  absl::Status PublishCommunicatorId(absl::string_view communicator,
                                     absl::string_view id) override {
    RETURN_IF_ERROR(CheckKey("a communicator's name", communicator));
    RETURN_IF_ERROR(CheckValue(communicator, id));
    v1::StoreRequest request;
    request.mutable_publish_id()->set_communicator(std::string(communicator));
    request.mutable_publish_id()->set_id(std::string(id));
    return Annotate(Execute(std::move(request)).status(), "PublishCommunicatorId", communicator);
  }

  absl::StatusOr<std::string> CommunicatorId(absl::string_view communicator,
                                             absl::Duration timeout) override {
    RETURN_IF_ERROR(CheckKey("a communicator's name", communicator));
    v1::StoreRequest request;
    request.mutable_get_id()->set_communicator(std::string(communicator));
    return Value(Execute(std::move(request), timeout), "CommunicatorId", communicator);
  }

  bool MoreNodesWait() const override {
    const std::string& file = environment_.checkpoint_file;
    return !file.empty() && access(file.c_str(), F_OK) == 0;
  }
  bool in_place() const override { return in_place_; }
  absl::Status AnnounceRejoin(std::function<void()> on_end) override;
  absl::StatusOr<std::unique_ptr<Worker>> Rejoin(absl::string_view reason,
                                                 absl::Duration timeout) override;

  void ReportProgress(int64_t step, double samples_per_second, double loss) override {
    progress_.Report(MonoNow(), step, samples_per_second, loss);
  }

 private:
  // Fills in who asks. What the store says about the operation stays in the status.
  absl::StatusOr<v1::StoreReply> Execute(v1::StoreRequest request,
                                         absl::Duration wait = absl::ZeroDuration()) {
    v1::StoreReply reply;
    RETURN_IF_ERROR(ExecuteInto(std::move(request), wait, &reply));
    return reply;
  }

  absl::Status ExecuteInto(v1::StoreRequest request, absl::Duration wait, v1::StoreReply* reply) {
    request.set_job(place_.job);
    request.set_generation(place_.generation);
    request.set_rank(place_.rank);
    request.set_client(client_);
    request.set_request_id(next_request_id_++);
    wait = std::min(std::max(wait, absl::ZeroDuration()), kMaxStoreWait);
    request.set_wait_ms(
        static_cast<uint32_t>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)))));
    return channel_.Execute(std::move(request), reply, options_.call_patience);
  }

  static absl::StatusOr<std::string> Value(absl::StatusOr<v1::StoreReply> reply,
                                           absl::string_view call, absl::string_view key) {
    if (!reply.ok()) return Annotate(reply.status(), call, key);
    return std::move(*reply->mutable_value());
  }

  std::unique_ptr<Worker> At(const v1::HelloReply& reply) const;
  v1::HelloRequest Self() const;
  void SetPlace(const v1::HelloReply& reply);

  const AgentWorkerOptions options_;
  const WorkerEnvironment environment_;
  AgentChannel channel_;
  const uint64_t client_;
  std::atomic<uint64_t> next_request_id_{1};
  ProgressWriter progress_;
  WorkerPlace place_;
  bool in_place_ = false;
  // Waits for the generation's end.
  grpc::ClientContext end_context_;
  std::thread end_thread_;
};

v1::HelloRequest AgentWorker::Self() const {
  v1::HelloRequest request;
  request.set_generation(environment_.generation);
  request.set_rank(environment_.rank);
  request.set_pid(getpid());
  return request;
}

absl::Status AgentWorker::Hello() {
  v1::HelloReply reply;
  const absl::Status status = channel_.Hello(Self(), &reply, options_.hello_patience);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("rank ", environment_.rank, " of generation ",
                                     environment_.generation, ": ", status.message()));
  }
  SetPlace(reply);
  return absl::OkStatus();
}

void AgentWorker::SetPlace(const v1::HelloReply& reply) {
  place_.job = reply.job();
  place_.generation = reply.generation();
  place_.rank = static_cast<int>(reply.rank());
  place_.world_size = static_cast<int>(reply.world_size());
  place_.local_rank = static_cast<int>(reply.local_rank());
  place_.local_world_size = static_cast<int>(reply.local_world_size());
  place_.node_rank = static_cast<int>(reply.node_rank());
  place_.nodes = static_cast<int>(reply.nodes());
  place_.restart_count = static_cast<int>(reply.restart_count());
  if (!reply.address().empty()) place_.address = reply.address();
  in_place_ = reply.in_place();
}

absl::Status AgentWorker::AnnounceRejoin(std::function<void()> on_end) {
  if (!in_place_ || end_thread_.joinable()) return Worker::AnnounceRejoin(std::move(on_end));
  end_thread_ = std::thread([this, on_end = std::move(on_end)] {
    v1::GenerationEnd end;
    const absl::Status status = channel_.AwaitEnd(&end_context_, Self(), &end);
    // Also when the agent is gone or does not keep this process: nothing more comes of it then.
    if (!absl::IsCancelled(status)) on_end();
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Worker>> AgentWorker::Rejoin(absl::string_view reason,
                                                            absl::Duration timeout) {
  if (!in_place_) return Worker::Rejoin(reason, timeout);
  v1::RejoinRequest request;
  *request.mutable_from() = Self();
  request.set_reason(std::string(reason.substr(0, kMaxReasonBytes)));
  v1::HelloReply reply;
  RETURN_IF_ERROR(channel_.Rejoin(request, &reply, timeout));
  return At(reply);
}

absl::StatusOr<std::unique_ptr<Worker>> AgentWorker::TakePlace() {
  v1::TakePlaceRequest request;
  request.set_standby(environment_.standby);
  v1::HelloReply reply;
  RETURN_IF_ERROR(channel_.TakePlace(request, &reply));
  return At(reply);
}

std::unique_ptr<Worker> AgentWorker::At(const v1::HelloReply& reply) const {
  WorkerEnvironment environment = environment_;
  environment.standby = 0;
  environment.generation = reply.generation();
  environment.rank = static_cast<int>(reply.rank());
  std::string& file = environment.checkpoint_file;
  const size_t slash = file.rfind('/');
  // An earlier generation's may be there already.
  if (slash != std::string::npos) {
    file = CheckpointFilePath(file.substr(0, slash), reply.generation());
  }
  auto worker = std::make_unique<AgentWorker>(environment, options_);
  worker->SetPlace(reply);
  return worker;
}

absl::StatusOr<std::string> AgentWorker::CompareAndSet(absl::string_view key,
                                                       absl::string_view expected,
                                                       absl::string_view desired) {
  RETURN_IF_ERROR(CheckKey("a key", key));
  RETURN_IF_ERROR(CheckValue(key, expected));
  RETURN_IF_ERROR(CheckValue(key, desired));
  v1::StoreRequest request;
  request.mutable_compare_and_set()->set_key(std::string(key));
  request.mutable_compare_and_set()->set_expected(std::string(expected));
  request.mutable_compare_and_set()->set_desired(std::string(desired));
  return Value(Execute(std::move(request)), "CompareAndSet", key);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> ConnectToAgent(const WorkerEnvironment& environment,
                                                       const AgentWorkerOptions& options) {
  auto worker = std::make_unique<AgentWorker>(environment, options);
  if (environment.standby != 0) return worker->TakePlace();
  RETURN_IF_ERROR(worker->Hello());
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace cadre
