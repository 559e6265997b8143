#include "worker_runtime/agent_worker.h"

#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"
#include "base/status_macros.h"
#include "proto/local.pb.h"
#include "proto/store.pb.h"
#include "worker_runtime/agent_channel.h"
#include "worker_runtime/progress/progress_writer.h"
#include "worker_runtime/store_worker.h"

namespace cadre {
namespace {

// Of what is said about a generation that is given up.
constexpr size_t kMaxReasonBytes = 512;

class AgentWorker : public StoreWorker {
 public:
  AgentWorker(const WorkerEnvironment& environment, const AgentWorkerOptions& options)
      : options_(options),
        environment_(environment),
        channel_(environment.agent_socket, environment.token),
        progress_(environment.progress_fd) {}

  ~AgentWorker() override {
    end_context_.TryCancel();
    if (end_thread_.joinable()) end_thread_.join();
  }

  absl::Status Hello();
  // The worker that this process is from now on, after it has stood by.
  absl::StatusOr<std::unique_ptr<Worker>> TakePlace();

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
  absl::Status Send(v1::StoreRequest request, v1::StoreReply* reply) override {
    return channel_.Execute(std::move(request), reply, options_.call_patience);
  }

  std::unique_ptr<Worker> At(const v1::HelloReply& reply) const;
  v1::HelloRequest Self() const;
  void SetPlace(const v1::HelloReply& reply);

  const AgentWorkerOptions options_;
  const WorkerEnvironment environment_;
  AgentChannel channel_;
  progress::ProgressWriter progress_;
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
  WorkerPlace place;
  place.job = reply.job();
  place.generation = reply.generation();
  place.rank = static_cast<int>(reply.rank());
  place.world_size = static_cast<int>(reply.world_size());
  place.local_rank = static_cast<int>(reply.local_rank());
  place.local_world_size = static_cast<int>(reply.local_world_size());
  place.node_rank = static_cast<int>(reply.node_rank());
  place.nodes = static_cast<int>(reply.nodes());
  place.restart_count = static_cast<int>(reply.restart_count());
  if (!reply.address().empty()) place.address = reply.address();
  in_place_ = reply.in_place();
  MoveTo(place);
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

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> ConnectToAgent(const WorkerEnvironment& environment,
                                                       const AgentWorkerOptions& options) {
  auto worker = std::make_unique<AgentWorker>(environment, options);
  if (environment.standby != 0) return worker->TakePlace();
  RETURN_IF_ERROR(worker->Hello());
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace cadre
