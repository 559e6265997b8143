// A worker that an agent started, and its calls to that agent.
#include "worker_runtime/store/agent_worker.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "rpc/worker_protocol.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/store/call_stream.h"
#include "worker_runtime/store/store_worker.h"

namespace cadre::store {
namespace {

// The most bytes of the reason for leaving a generation.
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
                     channel_.Execute(CallOf(std::move(request)), options_.call_timeout));
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
  // Runs AwaitEnd(), which waits for the generation's end.
  std::thread end_thread_;
};

rpc::Caller AgentWorker::Self() const {
  return {environment_.generation, environment_.rank, getpid()};
}

Status AgentWorker::Hello() {
  const Result<rpc::Place> place = channel_.SayHello(NextId(), Self(), options_.hello_timeout);
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
    // Also called if the agent is gone or does not keep this process, since this generation cannot
    // continue then.
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
  // The file of an earlier generation may still exist.
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

namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

// Pauses between attempts: doubling, and never beyond the deadline. False when that has passed.
class Pauses {
 public:
  explicit Pauses(MonoTime deadline) : deadline_(deadline) {}

  bool Next() {
    const MonoTime now = MonoNow();
    if (now >= deadline_) return false;
    const absl::Duration pause = std::min(pause_, deadline_ - now);
    pause_ = std::min(pause_ * 2, kLongestPause);
    absl::SleepFor(pause);
    return true;
  }

 private:
  const MonoTime deadline_;
  absl::Duration pause_ = kFirstPause;
};

Result<rpc::Place> PlaceIn(Result<rpc::WorkerReply> reply) {
  RETURN_IF_ERROR(reply.status());
  RETURN_IF_ERROR(reply->status());
  if (auto* place = std::get_if<rpc::Place>(&reply->what)) return std::move(*place);
  return InternalError("the agent's answer does not say which rank this process is");
}

}  // namespace

AgentChannel::AgentChannel(const std::string& socket, const std::string& token)
    : socket_(socket),
      calls_([socket] { return ConnectToUnixSocket(socket); }, token),
      end_([socket] { return ConnectToUnixSocket(socket); }, token) {}

Result<rpc::WorkerReply> AgentChannel::CallOnce(const rpc::WorkerCall& call, absl::Duration wait) {
  Result<rpc::WorkerReply> reply = calls_.Call(call, wait + kCallMargin);
  if (!reply.ok()) return Describe(reply.status(), wait);
  return reply;
}

Status AgentChannel::Describe(const Status& status, absl::Duration wait) const {
  if (status.code() == StatusCode::kUnavailable) {
    return UnavailableError(
        absl::StrCat("the agent at ", socket_, " cannot be reached: ", status.message()));
  }
  // The store's own message names what is missing.
  if (status.code() == StatusCode::kDeadlineExceeded && status.message().empty()) {
    return DeadlineExceededError(absl::StrCat("the agent at ", socket_, " did not answer within ",
                                              absl::FormatDuration(wait + kCallMargin)));
  }
  return status;
}

Status AgentChannel::OtherVersion(const Status& status) const {
  return FailedPreconditionError(absl::StrCat(
      "the agent at ", socket_, " speaks another version of the worker protocol: this program was ",
      "built with libcadre ", kVersion, ", which speaks version ", rpc::kWorkerProtocol,
      "; use the same version of Cadre for both (the agent: ", status.message(), ")"));
}

Result<rpc::Place> AgentChannel::SayHello(uint64_t id, const rpc::Caller& from,
                                          absl::Duration patience) {
  Pauses pauses(MonoNow() + patience);
  const rpc::Hello hello = {from};
  while (true) {
    Result<rpc::Place> place = PlaceIn(CallOnce({id, hello}, absl::ZeroDuration()));
    const StatusCode code = place.status().code();
    // The agent reports it, or one of the two cannot parse the other's messages.
    if (code == StatusCode::kFailedPrecondition || code == StatusCode::kInvalidArgument ||
        code == StatusCode::kInternal) {
      return OtherVersion(place.status());
    }
    if (code != StatusCode::kUnavailable || !pauses.Next()) return place;
  }
}

Status AgentChannel::AwaitEnd(uint64_t id, const rpc::Caller& from) {
  ASSIGN_OR_RETURN(const rpc::WorkerReply reply,
                   end_.Call({id, rpc::AwaitEnd{from}}, absl::InfiniteDuration()));
  return reply.status();
}

Result<rpc::Place> AgentChannel::Rejoin(uint64_t id, const rpc::Rejoin& call,
                                        absl::Duration timeout) {
  return PlaceIn(CallOnce({id, call}, timeout));
}

Result<rpc::WorkerReply> AgentChannel::Execute(rpc::WorkerCall call, absl::Duration patience) {
  uint32_t& wait_ms = std::get<rpc::Store>(call.what).wait_ms;
  const absl::Duration wait = absl::Milliseconds(wait_ms);
  const MonoTime waits_until = MonoNow() + wait;
  Pauses pauses(wait > absl::ZeroDuration() ? waits_until : MonoNow() + patience);
  while (true) {
    const absl::Duration left = std::max(waits_until - MonoNow(), absl::ZeroDuration());
    wait_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(left));
    // A call without a timeout still waits for a server that is temporarily away.
    Result<rpc::WorkerReply> reply = CallOnce(call, wait > absl::ZeroDuration() ? left : patience);
    const Status status = reply.ok() ? Status(reply->status()) : reply.status();
    if (status.code() != StatusCode::kUnavailable || !pauses.Next()) return reply;
  }
}

}  // namespace cadre::store
