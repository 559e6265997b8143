#include "worker_runtime/shared_memory/shared_memory_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/backend/group.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/backend/solo_communicator.h"
#include "worker_runtime/shared_memory/collective_steps.h"
#include "worker_runtime/shared_memory/futex.h"
#include "worker_runtime/shared_memory/peers.h"
#include "worker_runtime/shared_memory/segment.h"

namespace cadre::shared_memory {
namespace {

// Up to these sizes a collective is first tried on the caller's thread, because handing it to
// another thread costs about as much as the collective. It never waits there longer than a spin.
constexpr size_t kInlineBytes = 256 << 10;
constexpr size_t kInlineSharedBytes = 4 << 20;
// The size of a segment's address when ranks exchange it.
constexpr size_t kAddressBytes = 64;

class SharedMemoryCommunicator : public Communicator {
 public:
  // Constructs a communicator; the constructor itself cannot return an error.
  static Result<std::unique_ptr<Communicator>> Make(std::string name,
                                                    std::chrono::nanoseconds timeout,
                                                    Segments segments, int rank,
                                                    const std::vector<pid_t>& pids) {
    auto made = std::make_unique<SharedMemoryCommunicator>(std::move(name), timeout,
                                                           std::move(segments), rank, pids);
    // On an error the destructor tells the other ranks that this one leaves.
    RETURN_IF_ERROR(made->peers_.status());
    return std::unique_ptr<Communicator>(std::move(made));
  }
  SharedMemoryCommunicator(std::string name, std::chrono::nanoseconds timeout, Segments segments,
                           int rank, const std::vector<pid_t>& pids)
      : name_(std::move(name)),
        timeout_(timeout),
        segments_(std::move(segments)),
        allocations_(std::make_shared<Allocations>()),
        peers_(rank, ControlBlocksOf(segments_), pids),
        barrier_(&peers_) {
    CADRE_CHECK(rank >= 0 && rank < size() && size() <= kMaxSharedMemoryRanks &&
                    pids.size() == segments_.size(),
                "rank ", rank, " of ", size(), ", ", pids.size(), " processes");
    context_.barrier = &barrier_;
    context_.segments = &segments_;
    context_.allocations = allocations_.get();
  }
  ~SharedMemoryCommunicator() override {
    Abort();
    // The threads must end before the members that they use.
    std::map<std::pair<int, bool>, std::unique_ptr<Traffic>> traffic;
    absl::MutexLock lock(&traffic_mutex_);
    traffic.swap(traffic_);
  }

  int rank() const override { return peers_.rank(); }
  int size() const override { return peers_.size(); }

  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override {
    Status status = backend::CheckBuffer(buffer);
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start(status, buffer, ReduceSteps(buffer, reduction, -1));
  }
  std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root) override {
    Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start(status, buffer, ReduceSteps(buffer, reduction, root));
  }
  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override {
    Status status = backend::CheckScatter(input, output, size());
    status.Update(backend::CheckReduction(reduction, input.type));
    const std::vector<size_t> counts(size(), output.count);
    return Start(status, input,
                 ReduceScatterSteps(Collective::kReduceScatter, input, output, counts, reduction));
  }
  std::shared_ptr<Work> ReduceScatterVarying(Buffer input, Buffer output, Span<const size_t> counts,
                                             Reduction reduction) override {
    Status status = backend::CheckVaryingScatter(input, output, counts, rank(), size());
    status.Update(backend::CheckReduction(reduction, input.type));
    return Start(
        status, input,
        ReduceScatterSteps(Collective::kReduceScatterVarying, input, output, counts, reduction));
  }
  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override {
    Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    return Start(status, buffer, BroadcastSteps(buffer, root));
  }
  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override {
    const std::vector<size_t> counts(size(), input.count);
    return Start(backend::CheckGather(input, output, size()), output,
                 GatherSteps(Collective::kAllGather, input, output, counts));
  }
  std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                         Span<const size_t> counts) override {
    return Start(backend::CheckVaryingGather(input, output, counts, rank(), size()), output,
                 GatherSteps(Collective::kAllGatherVarying, input, output, counts));
  }
  std::shared_ptr<Work> Barrier() override {
    return Start(OkStatus(), Buffer{}, BroadcastSteps::Barrier());
  }
  std::shared_ptr<Work> Send(Buffer buffer, int to, int tag) override {
    return Exchange(buffer, to, tag, /*sends=*/true);
  }
  std::shared_ptr<Work> Receive(Buffer buffer, int from, int tag) override {
    return Exchange(buffer, from, tag, /*sends=*/false);
  }

  Result<std::unique_ptr<Communicator>> Split(int color, int key) override;
  Result<std::shared_ptr<void>> AllocateBuffer(size_t bytes) override;

  void Abort() override {
    Fail(AbortedError(absl::StrCat("communicator \"", name_, "\" was aborted")));
    peers_.GiveUp(Reason::kCaller, rank());
  }

 private:
  // One direction between this rank and another, with its thread.
  struct Traffic {
    explicit Traffic(const Channel& channel) : channel(channel) {}
    Channel channel;
    backend::OperationThread thread;
  };

  template <typename Steps>
  std::shared_ptr<Work> Start(const Status& check, const Buffer& largest, Steps steps);
  bool IsForCaller(const Buffer& largest);
  // Hands the collective to the thread. `begun`: this rank has already arrived at a barrier.
  template <typename Steps>
  std::shared_ptr<Work> Enqueue(Steps& steps, bool begun);
  // Returns true if the others came soon enough for the whole collective. If not, the thread
  // continues.
  template <typename Steps>
  Result<bool> TryInline(Steps& steps);
  // Continues with the wait for a barrier at which this rank has arrived.
  template <typename Steps>
  Status RunFromBarrier(Steps& steps, MonoTime deadline);

  std::shared_ptr<Work> Exchange(const Buffer& buffer, int peer, int tag, bool sends);
  Result<Traffic*> TrafficWith(int peer, bool sends);

  // Rejects a call that cannot be made: fails like Fail() and tells the other ranks.
  std::shared_ptr<Work> Refuse(const Status& check);
  // Makes this rank's own operations fail with `status`.
  void Fail(const Status& status);
  Status FailAll(const Status& status);

  // Exchanges memory: each of `members` contributes `own` and gets the segments of all. All ranks
  // of this communicator must call it; a rank in no group passes null and no members.
  Result<Segments> Share(Result<std::unique_ptr<SharedSegment>> own,
                         const std::vector<int>& members);

  const std::string name_;
  const std::chrono::nanoseconds timeout_;
  const Segments segments_;
  const std::shared_ptr<Allocations> allocations_;
  Peers peers_;
  RankBarrier barrier_;
  // Belongs to the operation thread while `queued_` is not 0, otherwise to the holder of `order_`.
  CollectiveContext context_;
  std::atomic<int> queued_{0};
  std::atomic<bool> failed_{false};
  CallLock order_;
  // The result of all calls that succeeded without the thread.
  const std::shared_ptr<Work> done_ = FinishedWork(OkStatus());
  absl::Mutex traffic_mutex_;
  std::map<std::pair<int, bool>, std::unique_ptr<Traffic>> traffic_ ABSL_GUARDED_BY(traffic_mutex_);
  // This is the last member, so it stops first.
  backend::OperationThread thread_;
};

template <typename Steps>
std::shared_ptr<Work> SharedMemoryCommunicator::Start(const Status& check, const Buffer& largest,
                                                      Steps steps) {
  if (!check.ok()) return Refuse(check);
  std::lock_guard<CallLock> lock(order_);
  if (queued_.load() != 0 || !IsForCaller(largest)) return Enqueue(steps, /*begun=*/false);
  if (failed_.load()) return FinishedWork(thread_.status());
  Result<bool> done = TryInline(steps);
  if (!done.ok()) return FinishedWork(done.status());
  return *done ? done_ : Enqueue(steps, /*begun=*/true);
}

template <typename Steps>
std::shared_ptr<Work> SharedMemoryCommunicator::Enqueue(Steps& steps, bool begun) {
  ++queued_;
  const MonoTime start = begun ? MonoNow() : MonoTime::Never();
  auto rest = std::make_shared<Steps>(std::move(steps));
  return thread_.Enqueue([this, rest, begun, start]() -> Status {
    const MonoTime deadline = (begun ? start : MonoNow()) + timeout_;
    if (!begun) {
      rest->Begin(context_);
      barrier_.Arrive();
    }
    Status status = RunFromBarrier(*rest, deadline);
    --queued_;
    return status;
  });
}

bool SharedMemoryCommunicator::IsForCaller(const Buffer& largest) {
  if (largest.count <= kInlineBytes / sizeof(double)) return true;  // whatever the type
  const size_t bytes = largest.count * SizeOf(largest.type);
  return bytes <= kInlineBytes || (bytes <= kInlineSharedBytes &&
                                   allocations_->Find(largest.data, bytes, &context_.allocation));
}

template <typename Steps>
Result<bool> SharedMemoryCommunicator::TryInline(Steps& steps) {
  steps.Begin(context_);
  barrier_.Arrive();
  while (barrier_.SpinForAll()) {
    Result<bool> done = steps.Next(context_);
    if (!done.ok()) return FailAll(done.status());
    if (*done) {
      barrier_.WakeLateSleepers();
      return true;
    }
    barrier_.Arrive();
  }
  return false;
}

template <typename Steps>
Status SharedMemoryCommunicator::RunFromBarrier(Steps& steps, MonoTime deadline) {
  while (true) {
    Status met = barrier_.WaitForAll(deadline);
    if (!met.ok()) return FailAll(met);
    Result<bool> done = steps.Next(context_);
    if (!done.ok()) return FailAll(done.status());
    if (*done) {
      barrier_.WakeLateSleepers();
      return OkStatus();
    }
    barrier_.Arrive();
  }
}

std::shared_ptr<Work> SharedMemoryCommunicator::Exchange(const Buffer& buffer, int peer, int tag,
                                                         bool sends) {
  Status check = backend::CheckPeer(peer, rank(), size());
  check.Update(backend::CheckBuffer(buffer));
  if (!check.ok()) return Refuse(check);
  if (failed_.load()) return FinishedWork(thread_.status());
  const Result<Traffic*> with = TrafficWith(peer, sends);
  if (!with.ok()) return Refuse(with.status());
  return (*with)->thread.Enqueue([this, traffic = *with, buffer, tag, sends]() -> Status {
    const MonoTime deadline = MonoNow() + timeout_;
    Status status = sends ? traffic->channel.Send(buffer, tag, deadline)
                          : traffic->channel.Receive(buffer, tag, deadline);
    return status.ok() ? status : FailAll(status);
  });
}

Result<SharedMemoryCommunicator::Traffic*> SharedMemoryCommunicator::TrafficWith(int peer,
                                                                                 bool sends) {
  absl::MutexLock lock(&traffic_mutex_);
  const auto found = traffic_.find({peer, sends});
  if (found != traffic_.end()) return found->second.get();
  const int from = sends ? rank() : peer, to = sends ? peer : rank();
  try {
    auto traffic = std::make_unique<Traffic>(
        Channel(&peers_, peer, ChannelOf(*segments_[from], to, size()), ChannelBytes(size())));
    if (failed_.load()) traffic->thread.Fail(thread_.status());
    return traffic_.emplace(std::make_pair(peer, sends), std::move(traffic)).first->second.get();
  } catch (const std::system_error& error) {
    return backend::NoThreadError(rank(), error);
  }
}

std::shared_ptr<Work> SharedMemoryCommunicator::Refuse(const Status& check) {
  Fail(check);
  peers_.GiveUp(Reason::kCaller, rank());
  return FinishedWork(check);
}

void SharedMemoryCommunicator::Fail(const Status& status) {
  thread_.Fail(status);
  failed_ = true;
  absl::MutexLock lock(&traffic_mutex_);
  for (auto& entry : traffic_) entry.second->thread.Fail(status);
}

Status SharedMemoryCommunicator::FailAll(const Status& status) {
  peers_.GiveUp(Reason::kMismatch, rank());
  const Status named(status.code(),
                     absl::StrCat("communicator \"", name_, "\": ", status.message()));
  Fail(named);
  // If something failed earlier, that is the reason for this failure too.
  return thread_.status();
}

Result<Segments> SharedMemoryCommunicator::Share(Result<std::unique_ptr<SharedSegment>> own,
                                                 const std::vector<int>& members) {
  // A rank without memory still takes part, so that all ranks fail for the same reason.
  std::string text = own.ok() && *own != nullptr ? (*own)->address() : "";
  text.resize(kAddressBytes);
  std::string all(kAddressBytes * size(), '\0');
  RETURN_IF_ERROR(AllGather({text.data(), kAddressBytes, DataType::kUint8},
                            {all.data(), all.size(), DataType::kUint8})
                      ->Wait(std::chrono::nanoseconds::max()));
  Segments segments;
  Status opened = own.status();
  for (const int peer : members) {
    const absl::string_view address(all.c_str() + peer * kAddressBytes);
    if (peer == rank()) {
      segments.push_back(own.ok() ? *std::move(own) : nullptr);
    } else if (address.empty()) {
      opened.Update(
          ResourceExhaustedError(absl::StrCat("rank ", peer, " has not enough shared memory")));
    } else {
      Result<std::unique_ptr<SharedSegment>> segment = SharedSegment::Open(address);
      opened.Update(segment.status());
      if (segment.ok()) segments.push_back(*std::move(segment));
    }
  }
  // A rank that has passed this barrier may close its descriptor.
  RETURN_IF_ERROR(Barrier()->Wait(timeout_));
  RETURN_IF_ERROR(opened);
  for (const auto& segment : segments) segment->CloseDescriptor();
  return segments;
}

Result<std::shared_ptr<void>> SharedMemoryCommunicator::AllocateBuffer(size_t bytes) {
  std::vector<int> everybody(size());
  for (int peer = 0; peer < size(); ++peer) everybody[peer] = peer;
  ASSIGN_OR_RETURN(Segments segments,
                   Share(SharedSegment::Create(std::max<size_t>(bytes, 1)), everybody));
  return Allocations::Add(allocations_, std::move(segments), rank());
}

Result<std::unique_ptr<Communicator>> SharedMemoryCommunicator::Split(int color, int key) {
  ASSIGN_OR_RETURN(const std::vector<int> members, backend::GroupOf(*this, color, key));
  const int ranks = static_cast<int>(members.size());
  Result<std::unique_ptr<SharedSegment>> own(nullptr);
  if (ranks > 1) own = SharedSegment::Create(SegmentBytes(ranks));
  ASSIGN_OR_RETURN(Segments segments,
                   Share(std::move(own), ranks > 1 ? members : std::vector<int>()));
  if (color < 0) return nullptr;
  if (ranks == 1) return backend::MakeSoloCommunicator();
  std::vector<pid_t> pids;
  for (const int peer : members) pids.push_back(peers_.pids()[peer]);
  const int own_rank =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  return Make(absl::StrCat(name_, "/", color), timeout_, std::move(segments), own_rank, pids);
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectSharedMemory(Worker& worker,
                                                          const CommunicatorOptions& options) {
  const WorkerPlace& place = worker.place();
  if (place.world_size == 1) return backend::MakeSoloCommunicator();
  if (place.nodes != 1 || place.world_size > kMaxSharedMemoryRanks) {
    return FailedPreconditionError(absl::StrCat(
        "shared memory joins up to ", kMaxSharedMemoryRanks, " ranks of one node; this world has ",
        place.world_size, " ranks on ", place.nodes, " nodes"));
  }
  ASSIGN_OR_RETURN(
      MappedSegments mapped,
      MapSegments(worker, options.name, SegmentBytes(place.world_size), options.timeout));
  return SharedMemoryCommunicator::Make(options.name, options.timeout, std::move(mapped.segments),
                                        place.rank, mapped.pids);
}

}  // namespace cadre::shared_memory
