#include "worker_runtime/gloo/gloo_communicator.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/backend/group.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/backend/solo_communicator.h"
#include "worker_runtime/gloo/blocked_pipe_signal.h"
#include "worker_runtime/gloo/call_watch.h"
#include "worker_runtime/gloo/gloo_collectives.h"
#include "worker_runtime/gloo/gloo_mesh.h"
#include "worker_runtime/gloo/group_store.h"
#include "worker_runtime/gloo/peer_links.h"
#include "worker_runtime/gloo/store_adaptor.h"
#include "worker_runtime/gloo/watched_transport.h"

namespace cadre::gloo {
namespace {

// FNV-1a over what must be equal on all ranks, folded to 16 bits.
uint16_t Fingerprint(absl::string_view call) {
  uint32_t hash = 2166136261u;
  for (const char c : call) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<uint16_t>(hash ^ (hash >> 16));
}

// Gloo's own slots, and those of watched_transport.cc, have other top bytes.
constexpr uint64_t kMessageSlot = 0xcad4ull << 40;
// Bytes of a text of Gloo's, which may have several lines, in an error.
constexpr size_t kMaxErrorText = 1024;

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(std::shared_ptr<WatchedMesh> mesh, std::unique_ptr<PeerLinks> links,
                   std::string name, absl::Duration timeout, std::string address)
      : mesh_(std::move(mesh)),
        name_(std::move(name)),
        timeout_(std::min(timeout, kMaxGlooTimeout)),
        address_(std::move(address)),
        watch_(mesh_->rank, mesh_->size, std::move(links),
               {[this](const absl::Status& reason) { mesh_->watched().Break(reason); },
                [this] { mesh_->watched().CheckAwaitedRanks(); }}) {
    mesh_->watched().SetExplanation(
        [this](const std::set<int>& ranks, const absl::Status& guess, bool may_wait) {
          return watch_.Explain(ranks, guess, may_wait);
        });
  }
  ~GlooCommunicator() override {
    Abort();
    // Their threads end before what they use does.
    std::map<std::pair<int, bool>, std::unique_ptr<Traffic>> traffic;
    absl::MutexLock lock(&traffic_mutex_);
    traffic.swap(traffic_);
  }

  int rank() const override { return mesh_->rank; }
  int size() const override { return mesh_->size; }

  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override {
    absl::Status status = backend::CheckBuffer(buffer);
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start(status,
                 absl::StrCat("all-reduce (", backend::Name(reduction.op), ") of ", Text(buffer)),
                 [this, buffer, reduction](Tags tags) {
                   if (buffer.count > 0) GlooAllReduce(mesh_, tags, buffer, reduction);
                 });
  }

  std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root) override {
    absl::Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start(status,
                 absl::StrCat("reduce (", backend::Name(reduction.op), ") to rank ", root, " of ",
                              Text(buffer)),
                 [this, buffer, reduction, root](Tags tags) {
                   GlooReduce(mesh_, tags, buffer, reduction, root);
                 });
  }

  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override {
    absl::Status status = backend::CheckScatter(input, output, size());
    status.Update(backend::CheckReduction(reduction, input.type));
    return Start(
        status,
        absl::StrCat("reduce-scatter (", backend::Name(reduction.op), ") of ", Text(output)),
        [this, input, output, reduction](Tags tags) {
          GlooReduceScatter(mesh_, tags, input, output, reduction);
        });
  }

  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override {
    absl::Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    return Start(status, absl::StrCat("broadcast from rank ", root, " of ", Text(buffer)),
                 [this, buffer, root](Tags tags) {
                   if (buffer.count > 0) GlooBroadcast(mesh_, tags, buffer, root);
                 });
  }

  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override {
    return Start(backend::CheckGather(input, output, size()),
                 absl::StrCat("all-gather of ", Text(input)), [this, input, output](Tags tags) {
                   if (input.count > 0) GlooAllGather(mesh_, tags, input, output);
                 });
  }

  std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                         absl::Span<const size_t> counts) override {
    return Start(
        backend::CheckVaryingGather(input, output, counts, rank(), size()),
        absl::StrCat("all-gather of ", Text(output), " in parts ", absl::StrJoin(counts, "+")),
        [this, input, output,
         parts = std::vector<size_t>(counts.begin(), counts.end())](Tags tags) {
          if (output.count > 0) GlooAllGatherVarying(mesh_, tags, input, output, parts);
        });
  }

  std::shared_ptr<Work> Barrier() override {
    return Start(absl::OkStatus(), "barrier", [this](Tags tags) { GlooBarrier(mesh_, tags); });
  }

  std::shared_ptr<Work> Send(Buffer buffer, int to, int tag) override {
    return Exchange(buffer, to, tag, /*sends=*/true);
  }
  std::shared_ptr<Work> Receive(Buffer buffer, int from, int tag) override {
    return Exchange(buffer, from, tag, /*sends=*/false);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

  void Abort() override {
    watch_.TellLeave();
    Fail(absl::AbortedError(absl::StrCat("communicator \"", name_, "\" was aborted")));
  }

 private:
  using Collective = std::function<void(Tags tags)>;

  // What goes before every message.
  struct MessageHeader {
    uint64_t count;
    int32_t tag;
    DataType type;
  };
  // One direction between this rank and another, with the thread that waits there.
  struct Traffic {
    uint64_t messages = 0;
    backend::OperationThread thread;
  };

  static std::string Text(const Buffer& buffer) {
    return absl::StrCat(buffer.count, " ", backend::Name(buffer.type));
  }

  std::shared_ptr<Work> Start(absl::Status check, std::string call, Collective collective) {
    return thread_.Enqueue([this, check = std::move(check), call = std::move(call),
                            collective = std::move(collective)]() -> absl::Status {
      const uint64_t number = ++calls_;
      mesh_->watched().SetDeadline(MonoNow() + timeout_);
      absl::Status status = check;
      status.Update(watch_.BeginCall(call));
      if (status.ok()) {
        status = RunGuarded([&] {
          // Calls that differ between ranks get different tags, so their messages never meet.
          collective(Tags(static_cast<uint32_t>(number), Fingerprint(call)));
          return absl::OkStatus();
        });
      }
      if (!status.ok()) return Told(absl::StrCat(call, ", collective ", number), status);
      watch_.EndCall();
      return absl::OkStatus();
    });
  }

  std::shared_ptr<Work> Exchange(const Buffer& buffer, int peer, int tag, bool sends);
  absl::Status SendNow(const Buffer& buffer, int to, int tag, uint64_t slot);
  absl::Status ReceiveNow(const Buffer& buffer, int from, int tag, uint64_t slot);

  // Turns what Gloo throws, and why it did, into a status.
  absl::Status RunGuarded(const std::function<absl::Status()>& operation);
  // Ends everything with `status`, here and for those who wait for this rank.
  void Fail(const absl::Status& status);
  absl::Status Told(const std::string& call, const absl::Status& status);

  const std::shared_ptr<WatchedMesh> mesh_;
  const std::string name_;
  const absl::Duration timeout_;
  const std::string address_;
  uint64_t calls_ = 0;  // by the operation thread
  CallWatch watch_;
  absl::Mutex traffic_mutex_;
  std::map<std::pair<int, bool>, std::unique_ptr<Traffic>> traffic_ ABSL_GUARDED_BY(traffic_mutex_);
  // Last, so that it stops first.
  backend::OperationThread thread_;
};

absl::Status GlooCommunicator::RunGuarded(const std::function<absl::Status()>& operation) {
  const BlockedPipeSignal blocked;
  WatchedContext& watched = mesh_->watched();
  std::string reason;
  absl::Status status;
  try {
    status = operation();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (reason.empty()) return status;
  const absl::Status broken = watched.broken();
  if (absl::IsDeadlineExceeded(broken)) {
    return absl::DeadlineExceededError(
        absl::StrCat(broken.message(), " (", absl::FormatDuration(timeout_), ")"));
  }
  return broken.ok() ? absl::UnavailableError(OneLine(reason, kMaxErrorText)) : broken;
}

void GlooCommunicator::Fail(const absl::Status& status) {
  thread_.Fail(status);
  {
    absl::MutexLock lock(&traffic_mutex_);
    for (auto& entry : traffic_) entry.second->thread.Fail(status);
  }
  mesh_->watched().Break(status);
}

absl::Status GlooCommunicator::Told(const std::string& call, const absl::Status& status) {
  watch_.TellFailure(status);
  const absl::Status told(
      status.code(), absl::StrCat(call, " on communicator \"", name_, "\": ", status.message()));
  Fail(told);
  // Where something failed earlier, that is the reason for this failure too.
  return thread_.status();
}

std::shared_ptr<Work> GlooCommunicator::Exchange(const Buffer& buffer, int peer, int tag,
                                                 bool sends) {
  absl::Status check = backend::CheckPeer(peer, rank(), size());
  check.Update(backend::CheckBuffer(buffer));
  if (!check.ok()) return FinishedWork(Told(sends ? "send" : "receive", check));
  absl::MutexLock lock(&traffic_mutex_);
  std::unique_ptr<Traffic>& traffic = traffic_[{peer, sends}];
  if (traffic == nullptr) traffic = std::make_unique<Traffic>();
  const absl::Status failed = thread_.status();
  if (!failed.ok()) return FinishedWork(failed);
  return traffic->thread.Enqueue(
      [this, buffer, peer, tag, sends, at = traffic.get()]() -> absl::Status {
        const uint64_t slot = kMessageSlot | (at->messages++ << 1);
        watch_.BeginMessage();
        const absl::Status status = RunGuarded([&] {
          return sends ? SendNow(buffer, peer, tag, slot) : ReceiveNow(buffer, peer, tag, slot);
        });
        watch_.EndMessage();
        if (status.ok()) return status;
        return Told(absl::StrCat(sends ? "send to rank " : "receive from rank ", peer, " of ",
                                 Text(buffer), " with tag ", tag),
                    status);
      });
}

absl::Status GlooCommunicator::SendNow(const Buffer& buffer, int to, int tag, uint64_t slot) {
  const MonoTime deadline = MonoNow() + timeout_;
  MessageHeader header = {buffer.count, tag, buffer.type};
  const auto first = mesh_->watched().CreateBuffer(&header, sizeof(header), deadline);
  first->send(to, slot, 0, sizeof(header));
  first->waitSend();
  const size_t bytes = buffer.count * SizeOf(buffer.type);
  if (bytes == 0) return absl::OkStatus();
  const auto second = mesh_->watched().CreateBuffer(buffer.data, bytes, deadline);
  second->send(to, slot | 1, 0, bytes);
  second->waitSend();
  return absl::OkStatus();
}

absl::Status GlooCommunicator::ReceiveNow(const Buffer& buffer, int from, int tag, uint64_t slot) {
  const MonoTime deadline = MonoNow() + timeout_;
  MessageHeader header = {};
  const auto first = mesh_->watched().CreateBuffer(&header, sizeof(header), deadline);
  first->recv(from, slot, 0, sizeof(header));
  first->waitRecv();
  if (header.count != buffer.count || header.type != buffer.type || header.tag != tag) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank(), " waits for ", Text(buffer), " with tag ", tag, ", but rank ", from,
        " sent ", header.count, " ", backend::Name(header.type), " with tag ", header.tag));
  }
  const size_t bytes = buffer.count * SizeOf(buffer.type);
  if (bytes == 0) return absl::OkStatus();
  const auto second = mesh_->watched().CreateBuffer(buffer.data, bytes, deadline);
  second->recv(from, slot | 1, 0, bytes);
  second->waitRecv();
  return absl::OkStatus();
}

// The last step of connecting. Throws what Gloo throws.
absl::StatusOr<std::unique_ptr<Communicator>> Complete(std::shared_ptr<WatchedMesh> mesh,
                                                       std::string name, absl::Duration timeout,
                                                       const std::string& address,
                                                       MonoTime deadline) {
  const BlockedPipeSignal blocked;
  mesh->watched().SetDeadline(deadline);
  const auto all_gather = [&mesh](void* own, void* all, size_t bytes) -> absl::Status {
    GlooAllGather(mesh, Tags(0, 0), {own, bytes, DataType::kUint8},
                  {all, bytes * mesh->size, DataType::kUint8});
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(std::unique_ptr<PeerLinks> links,
                   PeerLinks::Connect(mesh->rank, mesh->size, address, all_gather, deadline));
  return std::unique_ptr<Communicator>(std::make_unique<GlooCommunicator>(
      std::move(mesh), std::move(links), std::move(name), timeout, address));
}

absl::StatusOr<std::unique_ptr<Communicator>> GlooCommunicator::Split(int color, int key) {
  ASSIGN_OR_RETURN(const std::vector<int> members, backend::GroupOf(*this, color, key, timeout_));
  const int ranks = static_cast<int>(members.size());
  GroupStore store(this, members, timeout_);
  if (ranks < 2) {
    RETURN_IF_ERROR(store.Finish());
    return ranks == 0 ? nullptr : backend::MakeSoloCommunicator();
  }
  const int own_rank =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  const std::string name = absl::StrCat(name_, "/", color);
  try {
    auto mesh = std::make_shared<WatchedMesh>(own_rank, ranks);
    mesh->Connect(&store, address_, timeout_);
    // All that there is to say has been said.
    RETURN_IF_ERROR(store.Finish());
    return Complete(std::move(mesh), name, timeout_, address_, MonoNow() + timeout_);
  } catch (const std::exception& error) {
    const absl::Status reason = store.status().ok()
                                    ? absl::UnavailableError(OneLine(error.what(), kMaxErrorText))
                                    : store.status();
    // The others wait for this rank's part, even when it has none.
    store.Finish().IgnoreError();
    return absl::Status(reason.code(), absl::StrCat("connecting communicator \"", name, "\" from ",
                                                    address_, ": ", reason.message()));
  }
}

// How often this rank has opened a communicator of that name: the same number on all ranks, so it
// tells apart the keys of one that is opened again.
absl::StatusOr<std::string> KeyPrefix(Worker& worker, const std::string& name) {
  if (name.empty() || name.size() > kMaxCommunicatorName) {
    return absl::InvalidArgumentError(absl::StrCat("a communicator's name must have 1 to ",
                                                   kMaxCommunicatorName, " bytes, not ",
                                                   name.size()));
  }
  ASSIGN_OR_RETURN(const int64_t opened,
                   worker.Add(absl::StrCat("gloo/", name, "/opened/", worker.rank()), 1));
  return absl::StrCat("gloo/", name, "/", opened);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(Worker& worker,
                                                          const CommunicatorOptions& options) {
  if (worker.world_size() == 1) return backend::MakeSoloCommunicator();
  const MonoTime deadline = MonoNow() + options.timeout;
  ASSIGN_OR_RETURN(std::string prefix, KeyPrefix(worker, options.name));
  const std::string what = absl::StrCat("connecting communicator \"", options.name, "\" from ",
                                        worker.place().address, ": ");
  StoreAdaptor store(&worker, std::move(prefix), deadline);
  try {
    auto mesh = std::make_shared<WatchedMesh>(worker.rank(), worker.world_size());
    mesh->Connect(&store, worker.place().address, options.timeout);
    auto communicator =
        Complete(std::move(mesh), options.name, options.timeout, worker.place().address, deadline);
    if (communicator.ok()) return communicator;
    return absl::Status(communicator.status().code(),
                        absl::StrCat(what, communicator.status().message()));
  } catch (const std::exception& error) {
    if (!store.status().ok()) {
      return absl::Status(store.status().code(), absl::StrCat(what, store.status().message()));
    }
    if (MonoNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(what, OneLine(error.what(), kMaxErrorText)));
    }
    return absl::UnavailableError(absl::StrCat(what, OneLine(error.what(), kMaxErrorText)));
  }
}

}  // namespace cadre::gloo
