#include "bench/scale/fleet.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/bearer_token.h"
#include "base/check.h"
#include "base/clock.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/service/calls.h"
#include "rpc/channels.h"
#include "rpc/message_limits.h"
#include "rpc/tls/credentials.h"
#include "rpc/versions.h"

namespace cadre {
namespace {

// The renewing thread sleeps this long between two rounds.
constexpr absl::Duration kRenewPause = absl::Milliseconds(10);
// Threads that play agents.
constexpr size_t kPlayers = 2;

v1::NodeMessage JoinOf(const FleetOptions& options, size_t agent) {
  v1::NodeMessage message;
  v1::Join* join = message.mutable_join();
  join->set_node(absl::StrCat("node", agent));
  join->set_host(join->node());
  join->set_address("127.0.0.1");
  join->set_slots(options.slots);
  join->set_wanted_node_rank(-1);
  join->set_held_port(29500);
  *join->mutable_version() = rpc::ThisVersion();
  v1::JobSpec* spec = join->mutable_spec();
  spec->set_name(options.job);
  spec->add_command("./train");
  spec->mutable_nodes()->set_min(options.agents);
  spec->mutable_nodes()->set_max(options.agents);
  spec->mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  spec->mutable_workers_per_node()->set_count(options.slots);
  spec->mutable_restart()->set_max(1000);
  // The time that Cadre waits on purpose is not measured.
  spec->mutable_restart()->mutable_backoff_min()->set_nanos(1);
  spec->mutable_restart()->mutable_backoff_max()->set_nanos(1);
  return message;
}

}  // namespace

// One agent. At most one read and one write are in flight, and what follows from them is done on
// the thread that plays it.
class AgentStream {
 public:
  AgentStream(const FleetOptions& options, size_t agent, const Fleet::Observer& observer,
              grpc::CompletionQueue& queue)
      : options_(options), agent_(agent), observer_(observer), queue_(queue) {}

  void Open(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments = rpc::ClientChannelArguments();
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::Rendezvous::NewStub(
        grpc::CreateCustomChannel(options_.server.endpoint, credentials, arguments));
    context_.AddMetadata(rpc::kTokenMetadata, options_.server.token);
    Send(JoinOf(options_, agent_));
    const absl::MutexLock lock(&mutex_);
    stream_ = stub_->PrepareAsyncAttach(&context_, &queue_);
    stream_->StartCall(&started_);
    opened_ = true;
  }

  void Send(v1::NodeMessage message) {
    const absl::MutexLock lock(&mutex_);
    message.set_job(options_.job);
    message.set_generation(generation_);
    message.set_incarnation(agent_ + 1);
    if (!running_ && opened_) return;
    outbox_.push_back(std::move(message));
    WriteNext();
  }

  // Its Join is a renewal, too.
  void Renew() {
    if (!welcomed_) return;
    v1::NodeMessage renew;
    renew.mutable_renew();
    Send(std::move(renew));
  }

  void Cancel() {
    cancelled_ = true;
    context_.TryCancel();
  }
  void AwaitDone() {
    if (opened_) done_.WaitForNotification();
  }
  // Why it ended by itself, or empty.
  std::string broken() const {
    if (cancelled_ || !done_.HasBeenNotified()) return "";
    return absl::StrCat("agent ", agent_, ": ", status_.error_message(), " (code ",
                        status_.error_code(), ")");
  }

 private:
  void OnStarted(bool ok) {
    const absl::MutexLock lock(&mutex_);
    running_ = ok;
    if (!ok) return End();
    stream_->Read(&incoming_, &read_);
    WriteNext();
  }
  void OnRead(bool ok) {
    if (ok) {
      const auto more = std::move(*incoming_.mutable_more());
      SetHearing(true);
      OnMessage(incoming_);
      for (const v1::ServerMessage& next : more) OnMessage(next);
      SetHearing(false);
      incoming_.Clear();
    }
    const absl::MutexLock lock(&mutex_);
    if (!ok) return End();
    stream_->Read(&incoming_, &read_);
  }
  void OnWritten(bool ok) {
    const absl::MutexLock lock(&mutex_);
    writing_ = false;
    // The end of what is read tells why.
    if (ok) WriteNext();
    if (finished_) done_.Notify();
  }
  void OnFinished(bool) {
    const absl::MutexLock lock(&mutex_);
    finished_ = true;
    if (!writing_) done_.Notify();
  }
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    running_ = false;
    stream_->Finish(&status_, &finish_);
  }

  void OnMessage(const v1::ServerMessage& message) {
    observer_(agent_, message);
    if (message.has_welcome()) {
      welcomed_ = true;
    } else if (message.has_assign()) {
      {
        const absl::MutexLock lock(&mutex_);
        generation_ = message.generation();
      }
      for (uint32_t i = 0; i < options_.slots; ++i) {
        v1::NodeMessage started;
        started.mutable_worker_started()->set_local_rank(i);
        started.mutable_worker_started()->set_pid(static_cast<int32_t>(1000 + i));
        Send(std::move(started));
      }
    } else if (message.has_stop()) {
      v1::NodeMessage stopped;
      stopped.mutable_node_stopped()->set_held_port(29500);
      Send(std::move(stopped));
    }
  }

  // Answers to one message go out as one: an agent works off all that has come before its
  // link's writer looks.
  void SetHearing(bool hearing) {
    const absl::MutexLock lock(&mutex_);
    hearing_ = hearing;
    WriteNext();
  }

  // As an agent's link does: what waits goes out as one.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || hearing_ || !running_ || outbox_.empty()) return;
    writing_ = true;
    outgoing_ = std::move(outbox_.front());
    outbox_.pop_front();
    size_t bytes = outgoing_.ByteSizeLong();
    while (!outbox_.empty() && (bytes += outbox_.front().ByteSizeLong()) <= rpc::kBundleBytesMax) {
      *outgoing_.add_more() = std::move(outbox_.front());
      outbox_.pop_front();
    }
    stream_->Write(outgoing_, &written_);
  }

  const FleetOptions& options_;
  const size_t agent_;
  const Fleet::Observer& observer_;
  grpc::CompletionQueue& queue_;
  std::unique_ptr<v1::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::NodeMessage, v1::ServerMessage>> stream_;
  service::OperationOf<AgentStream, &AgentStream::OnStarted> started_{this};
  service::OperationOf<AgentStream, &AgentStream::OnRead> read_{this};
  service::OperationOf<AgentStream, &AgentStream::OnWritten> written_{this};
  service::OperationOf<AgentStream, &AgentStream::OnFinished> finish_{this};
  v1::ServerMessage incoming_;
  std::atomic<bool> opened_{false};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> welcomed_{false};
  grpc::Status status_;
  absl::Notification done_;
  absl::Mutex mutex_;
  std::deque<v1::NodeMessage> outbox_ ABSL_GUARDED_BY(mutex_);
  // gRPC's while writing_ holds.
  v1::NodeMessage outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool hearing_ ABSL_GUARDED_BY(mutex_) = false;
  // Messages may be written.
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Plays a part of the agents, as the thread of an agent's link plays one.
struct Player {
  Player() : thread([this] { Play(); }) {}
  ~Player() {
    queue.Shutdown();
    thread.join();
  }
  void Play() {
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) static_cast<service::Operation*>(tag)->Ended(ok);
  }

  grpc::CompletionQueue queue;
  std::thread thread;
};

struct Fleet::State {
  FleetOptions options;
  Observer observer;
  // Gone after the streams.
  std::vector<std::unique_ptr<Player>> players;
  std::vector<std::unique_ptr<AgentStream>> streams;
  absl::Notification ending;
  std::thread renewing;

  // One agent after the other, each once in the interval.
  void Renew() {
    const double in_one_pause =
        static_cast<double>(streams.size()) * absl::FDivDuration(kRenewPause, kRenewInterval);
    double due = 0;
    size_t next = 0;
    while (!ending.WaitForNotificationWithTimeout(kRenewPause)) {
      for (due += in_one_pause; due >= 1; --due) streams[next++ % streams.size()]->Renew();
    }
  }
};

std::shared_ptr<grpc::ChannelCredentials> ServerAddress::Credentials() const {
  rpc::TransportSecurity security;
  security.by_token = !ServerKeyInToken(token).empty();
  const auto credentials = rpc::MakeChannelCredentials(security, token);
  CADRE_CHECK(credentials.ok(), credentials.status().ToString());
  return *credentials;
}

Fleet::Fleet(FleetOptions options, Observer observer) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->observer = std::move(observer);
  for (size_t i = 0; i < std::min(state_->options.agents, kPlayers); ++i) {
    state_->players.push_back(std::make_unique<Player>());
  }
  for (size_t i = 0; i < state_->options.agents; ++i) {
    state_->streams.push_back(std::make_unique<AgentStream>(
        state_->options, i, state_->observer, state_->players[i % state_->players.size()]->queue));
  }
}

Fleet::~Fleet() {
  state_->ending.Notify();
  if (state_->renewing.joinable()) state_->renewing.join();
  for (const auto& stream : state_->streams) stream->Cancel();
  for (const auto& stream : state_->streams) stream->AwaitDone();
}

void Fleet::Connect() {
  const auto credentials = state_->options.server.Credentials();
  state_->renewing = std::thread([state = state_.get()] { state->Renew(); });
  for (const auto& stream : state_->streams) stream->Open(credentials);
}

void Fleet::Send(size_t agent, v1::NodeMessage message) {
  state_->streams[agent]->Send(std::move(message));
}

size_t Fleet::size() const { return state_->streams.size(); }

std::string Fleet::broken() const {
  for (const auto& stream : state_->streams) {
    const std::string why = stream->broken();
    if (!why.empty()) return why;
  }
  return "";
}

absl::Status LateError(absl::string_view what, const Marks& marks, const Fleet& fleet) {
  const std::string broken = fleet.broken();
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": only ", marks.marked(), " of ", marks.count(), " within ",
                   absl::FormatDuration(kLoadTimeout), broken.empty() ? "" : "; ", broken));
}

absl::StatusOr<std::unique_ptr<RunningJob>> RunningJob::Start(const ServerAddress& server,
                                                              size_t agents, uint32_t slots) {
  std::unique_ptr<RunningJob> job(new RunningJob(agents, slots));
  FleetOptions options;
  options.server = server;
  options.job = kLoadJob;
  options.agents = agents;
  options.slots = slots;
  job->fleet_ = std::make_unique<Fleet>(
      options, [job = job.get()](size_t agent, const v1::ServerMessage& message) {
        job->OnMessage(agent, message);
      });
  job->connected_ = MonoNow();
  job->fleet_->Connect();
  for (const auto& [what, marks] :
       {std::pair("joined", &job->welcomed_), std::pair("assigned", &job->assigned_),
        std::pair("running", &job->running_)}) {
    if (!marks->WaitForAll(kLoadTimeout)) return LateError(what, *marks, *job->fleet_);
  }
  return job;
}

void RunningJob::Observe(Fleet::Observer observer) {
  auto next = observer ? std::make_shared<const Fleet::Observer>(std::move(observer)) : nullptr;
  const absl::MutexLock lock(&mutex_);
  observer_.swap(next);
}

void RunningJob::OnMessage(size_t agent, const v1::ServerMessage& message) {
  if (message.has_welcome()) welcomed_.Mark(agent);
  if (message.has_assign()) assigned_.Mark(agent);
  if (message.has_status() && message.status().workers_running() == world_) running_.Mark(agent);
  std::shared_ptr<const Fleet::Observer> observer;
  {
    const absl::MutexLock lock(&mutex_);
    observer = observer_;
  }
  if (observer != nullptr) (*observer)(agent, message);
}

}  // namespace cadre
