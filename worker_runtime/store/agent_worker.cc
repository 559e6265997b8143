#include "worker_runtime/store/agent_worker.h"

#include <unistd.h>

#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"
#include "base/status_macros.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/progress/progress_writer.h"
#include "worker_runtime/store/agent_channel.h"
#include "worker_runtime/store/store_worker.h"

namespace cadre::store {
namespace {

// Of what is said about a generation that is given up.
constexpr size_t kMaxReasonBytes = 512;

class AgentWorker : public StoreWorker {
 public:
  AgentWorker(const environment::WorkerEnvironment& environment, const AgentWorkerOptions& options)
      : options_(options),
        environment_(environment),
        channel_(environment.agent_socket, environment.token),
        progress_(environment.progress_fd) {}

  ~AgentWorker() override {
    channel_.StopAwaiting();
    if (end_thread_.joinable()) end_thread_.join();
  }

  Status Hello();

  bool MoreNodesWait() const override {
    const std::string& file = environment_.checkpoint_file;
    return !file.empty() && access(file.c_str(), F_OK) == 0;
  }
  bool in_place() const override { return in_place_; }
  Status AnnounceRejoin(std::function<void()> on_end) override;
  Result<std::unique_ptr<Worker>> Rejoin(std::string_view reason,
                                         std::chrono::nanoseconds timeout) override;

  void ReportProgress(int64_t step, double samples_per_second, double loss) override {
    progress_.Report(MonoNow(), step, samples_per_second, loss);
  }

 private:
  Result<keyspace::Reply> Send(keyspace::Request request) override {
    ASSIGN_OR_RETURN(rpc::WorkerReply reply,
                     channel_.Execute(CallOf(std::move(request)), options_.call_patience));
    return ReplyOf(std::move(reply));
  }

  std::unique_ptr<Worker> At(const rpc::Place& place) const;
  rpc::Caller Self() const;
  void SetPlace(const rpc::Place& place);

  const AgentWorkerOptions options_;
  const environment::WorkerEnvironment environment_;
  AgentChannel channel_;
  progress::ProgressWriter progress_;
  bool in_place_ = false;
  // Waits for the generation's end.
  std::thread end_thread_;
};

rpc::Caller AgentWorker::Self() const {
  return {environment_.generation, environment_.rank, getpid()};
}

Status AgentWorker::Hello() {
  const Result<rpc::Place> place = channel_.SayHello(NextId(), Self(), options_.hello_patience);
  if (!place.ok()) {
    return Status(place.status().code(),
                  absl::StrCat("rank ", environment_.rank, " of generation ",
                               environment_.generation, ": ", place.status().message()));
  }
  SetPlace(*place);
  return OkStatus();
}

void AgentWorker::SetPlace(const rpc::Place& from) {
  WorkerPlace place;
  place.job = from.job;
  place.generation = from.generation;
  place.rank = static_cast<int>(from.rank);
  place.world_size = static_cast<int>(from.world_size);
  place.local_rank = static_cast<int>(from.local_rank);
  place.local_world_size = static_cast<int>(from.local_world_size);
  place.node_rank = static_cast<int>(from.node_rank);
  place.nodes = static_cast<int>(from.nodes);
  place.restart_count = static_cast<int>(from.restart_count);
  if (!from.address.empty()) place.address = from.address;
  in_place_ = from.in_place;
  MoveTo(place);
}

Status AgentWorker::AnnounceRejoin(std::function<void()> on_end) {
  if (!in_place_ || end_thread_.joinable()) return Worker::AnnounceRejoin(std::move(on_end));
  end_thread_ = std::thread([this, on_end = std::move(on_end)] {
    const Status status = channel_.AwaitEnd(NextId(), Self());
    // Also when the agent is gone or does not keep this process: nothing more comes of it then.
    if (status.code() != StatusCode::kCancelled) on_end();
  });
  return OkStatus();
}

Result<std::unique_ptr<Worker>> AgentWorker::Rejoin(std::string_view reason,
                                                    std::chrono::nanoseconds timeout) {
  if (!in_place_) return Worker::Rejoin(reason, timeout);
  ASSIGN_OR_RETURN(
      const rpc::Place place,
      channel_.Rejoin(NextId(), {Self(), std::string(reason.substr(0, kMaxReasonBytes))},
                      absl::FromChrono(timeout)));
  return At(place);
}

std::unique_ptr<Worker> AgentWorker::At(const rpc::Place& place) const {
  environment::WorkerEnvironment environment = environment_;
  environment.generation = place.generation;
  environment.rank = static_cast<int>(place.rank);
  std::string& file = environment.checkpoint_file;
  const size_t slash = file.rfind('/');
  // An earlier generation's may be there already.
  if (slash != std::string::npos) {
    file = CheckpointFilePath(file.substr(0, slash), place.generation);
  }
  auto worker = std::make_unique<AgentWorker>(environment, options_);
  worker->SetPlace(place);
  return worker;
}

}  // namespace

Result<std::unique_ptr<Worker>> ConnectToAgent(const environment::WorkerEnvironment& environment,
                                               const AgentWorkerOptions& options) {
  auto worker = std::make_unique<AgentWorker>(environment, options);
  RETURN_IF_ERROR(worker->Hello());
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace cadre::store
