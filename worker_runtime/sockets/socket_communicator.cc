#include "worker_runtime/sockets/socket_communicator.h"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "cadre/status.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/backend/group.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/backend/solo_communicator.h"
#include "worker_runtime/sockets/call_watch.h"
#include "worker_runtime/sockets/flow.h"
#include "worker_runtime/sockets/meeting.h"
#include "worker_runtime/sockets/messages.h"
#include "worker_runtime/sockets/plans.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {
namespace {

// The connections that carry a communicator's data, and how they are shut down.
//
// Thread safe.
class DataConnections {
 public:
  // Both vectors are indexed by rank.
  DataConnections(std::vector<wire::Connection> collectives,
                  std::vector<wire::Connection> messages);

  const std::vector<wire::Connection>& collectives() const { return collectives_; }
  const std::vector<wire::Connection>& messages() const { return messages_; }

  // Ends all present and future waits for these connections, on this rank and at the peers. The
  // first reason is kept.
  void Break(const Status& reason);
  // Shuts down this peer's connections; data that has already arrived can still be read.
  void Lose(int peer);
  // Returns OK until Break() is called.
  Status broken() const;

 private:
  const std::vector<wire::Connection> collectives_;
  const std::vector<wire::Connection> messages_;
  mutable absl::Mutex mutex_;
  Status broken_ ABSL_GUARDED_BY(mutex_);
};

// Up to this size a collective is first tried on the caller's thread, because handing it to another
// thread costs about as much as the collective. It never waits there longer than a spin.
constexpr size_t kInlineBytes = size_t{1} << 20;
// A rank polls its sockets this long, yielding its core in between, before it sleeps. It is longer
// than a thread that slept takes to run again. Otherwise a rank that slept once would make the
// others sleep, and they would make it sleep, forever.
constexpr absl::Duration kSpin = absl::Microseconds(100);
constexpr int kPollMillis = 1000;
constexpr Purpose kPurposes[] = {Purpose::kControl, Purpose::kCollectives, Purpose::kMessages};

// Hashes, with FNV-1a, what must be equal on all ranks.
uint64_t Fingerprint(absl::string_view call) {
  uint64_t hash = 1469598103934665603u;
  for (const char c : call) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

class SocketCommunicator : public Communicator {
 public:
  SocketCommunicator(int rank, int size, ConnectedRanks met, std::string name, std::string address,
                     std::chrono::nanoseconds timeout)
      : team_{rank, size},
        key_(std::move(met.key)),
        name_(std::move(name)),
        address_(std::move(address)),
        timeout_(timeout),
        connections_(std::move(met.mesh.at(Purpose::kCollectives)),
                     std::move(met.mesh.at(Purpose::kMessages))),
        watch_(rank, size, std::make_unique<PeerLinks>(std::move(met.mesh.at(Purpose::kControl))),
               {[this](const Status& reason) { connections_.Break(reason); },
                [this](int peer) { connections_.Lose(peer); }}),
        messages_(rank, connections_.messages(), timeout,
                  {[this] { watch_.BeginMessage(); },
                   [this](const std::string& call, int peer, const Status& status) {
                     return EndMessage(call, peer, status);
                   }}) {}
  ~SocketCommunicator() override {
    Abort();
    messages_.Stop();
  }

  int rank() const override { return team_.rank; }
  int size() const override { return team_.size; }

  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override {
    Status status = backend::CheckBuffer(buffer);
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start({status, backend::AllReduceText(buffer, reduction), BytesOf(buffer),
                  [this, buffer, op = reduction.op] { return PlanAllReduce(team_, buffer, op); },
                  reduction.premultiply});
  }

  std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root) override {
    Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start(
        {status, backend::ReduceText(buffer, reduction, root), BytesOf(buffer),
         [this, buffer, op = reduction.op, root] { return PlanReduce(team_, buffer, op, root); },
         reduction.premultiply});
  }

  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override {
    Status status = backend::CheckScatter(input, output, size());
    status.Update(backend::CheckReduction(reduction, input.type));
    return Start({status, backend::ReduceScatterText(output, reduction), BytesOf(input),
                  [this, input, output, op = reduction.op] {
                    const std::vector<size_t> counts(size(), output.count);
                    return PlanReduceScatter(team_, input, output, counts, op);
                  },
                  reduction.premultiply});
  }

  std::shared_ptr<Work> ReduceScatterVarying(Buffer input, Buffer output, Span<const size_t> counts,
                                             Reduction reduction) override {
    Status status = backend::CheckVaryingScatter(input, output, counts, rank(), size());
    status.Update(backend::CheckReduction(reduction, input.type));
    return Start({status, backend::ReduceScatterVaryingText(input, reduction, counts),
                  BytesOf(input),
                  [this, input, output, op = reduction.op,
                   parts = std::vector<size_t>(counts.begin(), counts.end())] {
                    return PlanReduceScatter(team_, input, output, parts, op);
                  },
                  reduction.premultiply});
  }

  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override {
    Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    return Start({status, backend::BroadcastText(buffer, root), BytesOf(buffer),
                  [this, buffer, root] { return PlanBroadcast(team_, buffer, root); }});
  }

  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override {
    return Start({backend::CheckGather(input, output, size()), backend::AllGatherText(input),
                  BytesOf(output), [this, input, output] {
                    const std::vector<size_t> counts(size(), input.count);
                    return PlanAllGather(team_, input, output, counts);
                  }});
  }

  std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                         Span<const size_t> counts) override {
    return Start({backend::CheckVaryingGather(input, output, counts, rank(), size()),
                  backend::AllGatherVaryingText(output, counts), BytesOf(output),
                  [this, input, output, parts = std::vector<size_t>(counts.begin(), counts.end())] {
                    return PlanAllGather(team_, input, output, parts);
                  }});
  }

  std::shared_ptr<Work> Barrier() override {
    return Start({OkStatus(), "barrier", 0, [this] { return PlanBarrier(team_); }});
  }

  std::shared_ptr<Work> Send(Buffer buffer, int to, int tag) override {
    return Exchange(Direction::kSend, buffer, to, tag);
  }
  std::shared_ptr<Work> Receive(Buffer buffer, int from, int tag) override {
    return Exchange(Direction::kReceive, buffer, from, tag);
  }

  Result<std::unique_ptr<Communicator>> Split(int color, int key) override;

  void Abort() override {
    const std::string what = absl::StrCat("communicator \"", name_, "\" was aborted");
    const Status status = AbortedError(what);
    thread_.Fail(status);  // first, so that later failures report this reason too
    watch_.ReportLeave();
    Fail(status);
  }

 private:
  // A collective as the caller requested it.
  struct Call {
    Status check;
    std::string text;
    size_t bytes = 0;
    std::function<Plan()> plan;
    double factor = 1;
  };
  // A collective whose turn has come or is to come.
  struct Operation {
    explicit Operation(Call call) : call(std::move(call)) {}
    const Call call;
    uint64_t number = 0;
    MonoTime start;
    MonoTime deadline;
    std::optional<Flow> flow;
  };
  // Whether a rank that has polled for long enough may sleep.
  enum class Patience { kSpin, kSleep };

  static size_t BytesOf(const Buffer& buffer) { return buffer.count * SizeOf(buffer.type); }
  static std::string TextOf(const Operation& operation) {
    return absl::StrCat(operation.call.text, ", collective ", operation.number);
  }

  std::shared_ptr<Work> Start(Call call);
  Status Begin(Operation& operation);
  // Returns true if the operation is done. Returns false only if `patience` forbids to sleep.
  Result<bool> Run(Operation& operation, Patience patience);
  // Returns the reason why the operation cannot go on.
  Status Lost(const Operation& operation, bool differs);
  Status TimeoutError(const Operation& operation);

  std::shared_ptr<Work> Exchange(Direction direction, const Buffer& buffer, int peer, int tag);
  Status EndMessage(const std::string& call, int peer, Status status);

  // Makes everything fail with `status`, on this rank and for ranks that wait for it.
  void Fail(const Status& status);
  // Does the same and tells the other ranks the reason.
  Status FailAll(const std::string& call, const Status& status);

  const Team team_;
  const std::string key_;
  const std::string name_;
  const std::string address_;
  const std::chrono::nanoseconds timeout_;
  DataConnections connections_;
  CallWatch watch_;
  // Held while a call is started. The counter of calls belongs to the operation thread while
  // `queued_` is not 0, otherwise to the thread that holds `order_`.
  absl::Mutex order_;
  std::atomic<int> queued_{0};
  uint64_t calls_ = 0;
  int splits_ = 0;
  Messages messages_;
  // This is the last member, so it stops first.
  backend::OperationThread thread_;
};

std::shared_ptr<Work> SocketCommunicator::Start(Call call) {
  const auto operation = std::make_shared<Operation>(std::move(call));
  absl::MutexLock lock(&order_);
  bool has_begun = false;
  // A call that will fail may wait to learn the reason, so it is not tried here.
  if (queued_.load() == 0 && operation->call.bytes <= kInlineBytes && operation->call.check.ok() &&
      watch_.IsUndisturbed()) {
    Status status = thread_.status();
    if (!status.ok()) return FinishedWork(status);
    status = Begin(*operation);
    if (!status.ok()) return FinishedWork(status);
    const Result<bool> done = Run(*operation, Patience::kSpin);
    if (!done.ok()) return FinishedWork(done.status());
    if (*done) {
      return FinishedWork(OkStatus(), absl::ToChronoNanoseconds(MonoNow() - operation->start));
    }
    has_begun = true;
  }
  ++queued_;
  return thread_.Enqueue([this, operation, has_begun]() -> Status {
    Status status = has_begun ? OkStatus() : Begin(*operation);
    if (status.ok()) status = Run(*operation, Patience::kSleep).status();
    --queued_;
    return status;
  });
}

Status SocketCommunicator::Begin(Operation& operation) {
  operation.number = ++calls_;
  operation.start = MonoNow();
  operation.deadline = operation.start + timeout_;
  Status status = operation.call.check;
  status.Update(watch_.BeginCall(operation.call.text));
  if (!status.ok()) return FailAll(TextOf(operation), status);
  operation.flow.emplace(
      team_.rank, connections_.collectives(),
      Opening{operation.number, Fingerprint(operation.call.text), operation.call.factor},
      operation.call.plan());
  return OkStatus();
}

Result<bool> SocketCommunicator::Run(Operation& operation, Patience patience) {
  Flow& flow = *operation.flow;
  MonoTime spin_until = MonoTime::Never();
  Status status;
  while (status.ok()) {
    const Flow::State state = flow.Advance();
    if (state == Flow::State::kDone) {
      watch_.EndCall();
      return true;
    }
    if (state == Flow::State::kMoved) {
      spin_until = MonoTime::Never();
      continue;
    }
    if (state == Flow::State::kStuck) {
      const MonoTime now = MonoNow();
      if (spin_until == MonoTime::Never()) spin_until = now + kSpin;
      if (now < spin_until) {
        sched_yield();
        flow.Await(0);
        continue;
      }
    }
    if (patience == Patience::kSpin) return false;
    if (state != Flow::State::kStuck || !connections_.broken().ok()) {
      status = Lost(operation, state == Flow::State::kDiffers);
    } else if (MonoNow() >= operation.deadline) {
      status = TimeoutError(operation);
    } else {
      flow.Await(MillisUntil(operation.deadline, kPollMillis));
    }
  }
  return FailAll(TextOf(operation), status);
}

Status SocketCommunicator::Lost(const Operation& operation, bool differs) {
  Status status = connections_.broken();
  if (!status.ok()) return status;
  const int peer = operation.flow->lost_peer();
  const std::string text = absl::StrCat("rank ", peer, ": ", operation.flow->lost_reason());
  // This rank detected the damage itself, while the peer may have seen the same error and blame
  // this rank. So other ranks are not asked.
  if (operation.flow->lost_reason() == wire::kAlteredText) return UnavailableError(text);
  return watch_.Explain({peer}, differs ? InvalidArgumentError(text) : UnavailableError(text),
                        /*may_wait=*/true);
}

Status SocketCommunicator::TimeoutError(const Operation& operation) {
  const Status status =
      watch_.Explain({},
                     DeadlineExceededError(absl::StrCat("rank ", operation.flow->awaited_peer(),
                                                        " did not answer in time")),
                     /*may_wait=*/true);
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return DeadlineExceededError(
      absl::StrCat(status.message(), " (", absl::FormatDuration(absl::FromChrono(timeout_)), ")"));
}

void SocketCommunicator::Fail(const Status& status) {
  thread_.Fail(status);
  messages_.Fail(status);
  connections_.Break(status);
}

Status SocketCommunicator::FailAll(const std::string& call, const Status& status) {
  watch_.ReportFailure(status);
  Fail(Status(status.code(),
              absl::StrCat(call, " on communicator \"", name_, "\": ", status.message())));
  // If something failed earlier, that is the reason for this failure too.
  return thread_.status();
}

std::shared_ptr<Work> SocketCommunicator::Exchange(Direction direction, const Buffer& buffer,
                                                   int peer, int tag) {
  Status check = backend::CheckPeer(peer, rank(), size());
  check.Update(backend::CheckBuffer(buffer));
  if (check.ok()) return messages_.Start(direction, buffer, peer, tag);
  return FinishedWork(FailAll(direction == Direction::kSend ? "send" : "receive", check));
}

Status SocketCommunicator::EndMessage(const std::string& call, int peer, Status status) {
  watch_.EndMessage();
  if (status.ok()) return status;
  if (!connections_.broken().ok()) {
    status = connections_.broken();
  } else if (status.code() == StatusCode::kUnavailable &&
             !absl::EndsWith(status.message(), wire::kAlteredText)) {
    status = watch_.ExplainMessage(peer, status);
  }
  return FailAll(call, status);
}

Result<std::unique_ptr<Communicator>> SocketCommunicator::Split(int color, int key) {
  ASSIGN_OR_RETURN(const std::vector<int> members, backend::GroupOf(*this, color, key));
  const int ranks = static_cast<int>(members.size());
  const auto own = std::find(members.begin(), members.end(), rank()) - members.begin();
  // A rank that left has contributed to earlier calls, but it will not connect to the group.
  const auto check = [&]() -> Status {
    const Status broken = connections_.broken();
    return broken.ok() ? watch_.ExplainLoss({members.begin(), members.end()}) : broken;
  };
  Result<ConnectedRanks> met = MeetInGroup(
      *this,
      {members, KeyedDigest(key_, absl::StrCat("split ", ++splits_)), address_, timeout_, check},
      kPurposes);
  const std::string name = absl::StrCat(name_, "/", color);
  if (!met.ok()) {
    return FailAll(absl::StrCat("connecting communicator \"", name, "\" of ranks ",
                                absl::StrJoin(members, ", "), " from ", address_),
                   met.status());
  }
  if (ranks == 0) return nullptr;
  if (ranks == 1) return backend::MakeSoloCommunicator();
  return std::make_unique<SocketCommunicator>(own, ranks, *std::move(met), name, address_,
                                              timeout_);
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectSockets(Worker& worker,
                                                     const CommunicatorOptions& options) {
  const WorkerPlace& place = worker.place();
  if (place.world_size == 1) return backend::MakeSoloCommunicator();
  Result<ConnectedRanks> met = MeetInStore(worker, options.name, kPurposes, options.timeout);
  if (!met.ok()) {
    return Status(met.status().code(),
                  absl::StrCat("connecting communicator \"", options.name, "\" from ",
                               place.address, ": ", met.status().message()));
  }
  return std::make_unique<SocketCommunicator>(place.rank, place.world_size, *std::move(met),
                                              options.name, place.address, options.timeout);
}

DataConnections::DataConnections(std::vector<wire::Connection> collectives,
                                 std::vector<wire::Connection> messages)
    : collectives_(std::move(collectives)), messages_(std::move(messages)) {}

void DataConnections::Break(const Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = reason;
  }
  // The sockets are not closed: a waiting thread must not find another file under the descriptor.
  for (const auto* const connections : {&collectives_, &messages_}) {
    for (const wire::Connection& connection : *connections) {
      if (connection.ok()) shutdown(connection.fd(), SHUT_RDWR);
    }
  }
}

void DataConnections::Lose(int peer) {
  for (const auto* const connections : {&collectives_, &messages_}) {
    shutdown((*connections)[peer].fd(), SHUT_RDWR);
  }
}

Status DataConnections::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

}  // namespace cadre::sockets
