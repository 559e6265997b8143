#include "worker_runtime/hierarchical/hierarchical_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/call_watch.h"
#include "worker_runtime/sockets/meeting.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/store/group_worker.h"

namespace cadre::hierarchical {
namespace {

// The ranks of a node wait longer for each other than the leaders do, so that a failing leader
// reports its reason before the other ranks of its node time out.
constexpr std::chrono::nanoseconds kNodePatience = std::chrono::seconds(5);

struct Parts {
  std::unique_ptr<Communicator> node;     // the ranks of this node
  std::unique_ptr<Communicator> leaders;  // null on ranks that lead no node
  std::unique_ptr<Communicator> direct;   // all ranks: messages and groups
};

class HierarchicalCommunicator : public Communicator {
 public:
  HierarchicalCommunicator(Parts parts, std::unique_ptr<sockets::PeerLinks> links,
                           NodeLayout layout, int node_rank, const CommunicatorOptions& options)
      : parts_(std::move(parts)),
        layout_(std::move(layout)),
        node_rank_(node_rank),
        name_(options.name),
        timeout_(options.timeout + 2 * kNodePatience),
        watch_(rank(), size(), std::move(links),
               // The parts detect lost peers themselves.
               {[this](const Status&) { AbortParts(); }, [](int) {}}) {}
  ~HierarchicalCommunicator() override { Abort(); }

  int rank() const override { return parts_.direct->rank(); }
  int size() const override { return parts_.direct->size(); }

  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override {
    Status status = backend::CheckBuffer(buffer);
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start(status, backend::AllReduceText(buffer, reduction),
                 [this, buffer, reduction] { return AllReduceNow(buffer, reduction); });
  }

  std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root) override {
    Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start(status, backend::ReduceText(buffer, reduction, root),
                 [this, buffer, reduction, root] { return ReduceNow(buffer, reduction, root); });
  }

  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override {
    Status status = backend::CheckScatter(input, output, size());
    status.Update(backend::CheckReduction(reduction, input.type));
    return Start(status, backend::ReduceScatterText(output, reduction),
                 [this, input, output, reduction] {
                   const std::vector<size_t> counts(size(), output.count);
                   return ReduceScatterNow(input, output, counts, reduction);
                 });
  }

  std::shared_ptr<Work> ReduceScatterVarying(Buffer input, Buffer output, Span<const size_t> counts,
                                             Reduction reduction) override {
    Status status = backend::CheckVaryingScatter(input, output, counts, rank(), size());
    status.Update(backend::CheckReduction(reduction, input.type));
    return Start(status, backend::ReduceScatterVaryingText(input, reduction, counts),
                 [this, input, output, reduction,
                  parts = std::vector<size_t>(counts.begin(), counts.end())] {
                   return ReduceScatterNow(input, output, parts, reduction);
                 });
  }

  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override {
    Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    return Start(status, backend::BroadcastText(buffer, root),
                 [this, buffer, root] { return BroadcastNow(buffer, root); });
  }

  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override {
    return Start(backend::CheckGather(input, output, size()), backend::AllGatherText(input),
                 [this, input, output] {
                   return GatherNow(input, output, std::vector<size_t>(size(), input.count));
                 });
  }

  std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                         Span<const size_t> counts) override {
    return Start(backend::CheckVaryingGather(input, output, counts, rank(), size()),
                 backend::AllGatherVaryingText(output, counts),
                 [this, input, output, parts = std::vector<size_t>(counts.begin(), counts.end())] {
                   return GatherNow(input, output, parts);
                 });
  }

  std::shared_ptr<Work> Barrier() override {
    return Start(OkStatus(), "barrier", [this]() -> Status {
      RETURN_IF_ERROR(InNode(parts_.node->Barrier()));
      if (leads()) RETURN_IF_ERROR(BetweenNodes(parts_.leaders->Barrier()));
      return InNode(parts_.node->Barrier());
    });
  }

  std::shared_ptr<Work> Send(Buffer buffer, int to, int tag) override {
    return parts_.direct->Send(buffer, to, tag);
  }
  std::shared_ptr<Work> Receive(Buffer buffer, int from, int tag) override {
    return parts_.direct->Receive(buffer, from, tag);
  }

  Result<std::unique_ptr<Communicator>> Split(int color, int key) override;

  // Allocates where the ranks of a node reduce without copies.
  Result<std::shared_ptr<void>> AllocateBuffer(size_t bytes) override;

  void Abort() override {
    watch_.ReportLeave();
    thread_.Fail(AbortedError(absl::StrCat("communicator \"", name_, "\" was aborted")));
    AbortParts();
  }

 private:
  bool leads() const { return parts_.leaders != nullptr; }

  std::shared_ptr<Work> Start(const Status& check, const std::string& call,
                              const std::function<Status()>& collective) {
    return thread_.Enqueue([this, check, call, collective]() -> Status {
      Status status = check;
      status.Update(watch_.BeginCall(call));
      if (status.ok()) {
        status = collective();
        // A part knows only its own ranks; the cause may be elsewhere.
        if (!status.ok()) status = watch_.Explain({}, status, /*may_wait=*/true);
      }
      if (status.ok()) {
        watch_.EndCall();
        return status;
      }
      watch_.ReportFailure(status);
      AbortParts();
      return Status(status.code(),
                    absl::StrCat(call, " on communicator \"", name_, "\": ", status.message()));
    });
  }

  void AbortParts() {
    parts_.node->Abort();
    if (leads()) parts_.leaders->Abort();
    parts_.direct->Abort();
  }

  static std::vector<char> CopyOf(const Buffer& buffer) {
    const char* const data = static_cast<const char*>(buffer.data);
    return std::vector<char>(data, data + buffer.count * SizeOf(buffer.type));
  }

  // Returns only when the work is done, since it uses this collective's memory.
  Status EndOf(const std::shared_ptr<Work>& work) {
    const Status status = work->Wait(timeout_);
    if (work->done()) return status;
    AbortParts();
    work->Wait(std::chrono::nanoseconds::max()).IgnoreError();
    return status;
  }
  Status InNode(const std::shared_ptr<Work>& work) {
    return AddContext("within node ", EndOf(work));
  }
  Status BetweenNodes(const std::shared_ptr<Work>& work) {
    return AddContext("between the leaders of the nodes, as of node ", EndOf(work));
  }
  Status AddContext(const char* where, const Status& status) const {
    if (status.ok()) return status;
    return Status(status.code(), absl::StrCat(where, node_rank_, ": ", status.message()));
  }

  Status AllReduceNow(const Buffer& buffer, const Reduction& reduction);
  Status ReduceNow(const Buffer& buffer, const Reduction& reduction, int root);
  Status ReduceScatterNow(const Buffer& input, const Buffer& output,
                          const std::vector<size_t>& counts, const Reduction& reduction);
  Status ScatterInNode(const Buffer& node_part, const Buffer& output,
                       const std::vector<size_t>& counts);
  Status BroadcastNow(const Buffer& buffer, int root);
  Status GatherNow(const Buffer& input, const Buffer& output, const std::vector<size_t>& counts);
  // Returns OK also if `memory` becomes RESOURCE_EXHAUSTED, which it then does on all ranks.
  Status AllocateNow(size_t bytes, Result<std::shared_ptr<void>>* memory);
  // Turns averages into sums that are divided before the sum, so that the nodes' sums of 16-bit
  // elements stay in range.
  Reduction WithinNode(const Reduction& reduction) const {
    if (reduction.op != ReduceOp::kAverage) return reduction;
    return Reduction(ReduceOp::kSum, reduction.premultiply / size());
  }

  const Parts parts_;
  const NodeLayout layout_;
  const int node_rank_;
  const std::string name_;
  const std::chrono::nanoseconds timeout_;
  sockets::CallWatch watch_;
  // The last member, so that it stops first.
  backend::OperationThread thread_;
};

Status HierarchicalCommunicator::AllReduceNow(const Buffer& buffer, const Reduction& reduction) {
  const Reduction within = WithinNode(reduction);
  RETURN_IF_ERROR(InNode(parts_.node->Reduce(buffer, within, 0)));
  if (leads()) RETURN_IF_ERROR(BetweenNodes(parts_.leaders->AllReduce(buffer, within.op)));
  return InNode(parts_.node->Broadcast(buffer, 0));
}

Status HierarchicalCommunicator::ReduceNow(const Buffer& buffer, const Reduction& reduction,
                                           int root) {
  const Reduction within = WithinNode(reduction);
  const int root_node = layout_.NodeOf(root), root_on_node = root - layout_.FirstRank(root_node);
  // Only the root's elements may change.
  std::vector<char> copy;
  Buffer sums = buffer;
  if (leads() && rank() != root) {
    copy = CopyOf(buffer);
    sums.data = copy.data();
  }
  RETURN_IF_ERROR(InNode(parts_.node->Reduce(sums, within, 0)));
  if (leads()) RETURN_IF_ERROR(BetweenNodes(parts_.leaders->Reduce(sums, within.op, root_node)));
  if (root_node != node_rank_ || root_on_node == 0) return OkStatus();
  if (leads()) return InNode(parts_.node->Send(sums, root_on_node, 0));
  return rank() == root ? InNode(parts_.node->Receive(buffer, 0, 0)) : OkStatus();
}

Status HierarchicalCommunicator::ReduceScatterNow(const Buffer& input, const Buffer& output,
                                                  const std::vector<size_t>& counts,
                                                  const Reduction& reduction) {
  const Reduction within = WithinNode(reduction);
  std::vector<char> copy;
  Buffer sums = input;
  if (leads()) {
    copy = CopyOf(input);
    sums.data = copy.data();
  }
  RETURN_IF_ERROR(InNode(parts_.node->Reduce(sums, within, 0)));
  if (!leads()) return InNode(parts_.node->Receive(output, 0, 0));
  const std::vector<size_t> node_counts = layout_.Sums(counts);
  std::vector<char> part(node_counts[node_rank_] * SizeOf(input.type));
  const Buffer node_part = {part.data(), node_counts[node_rank_], input.type};
  RETURN_IF_ERROR(
      BetweenNodes(parts_.leaders->ReduceScatterVarying(sums, node_part, node_counts, within.op)));
  return ScatterInNode(node_part, output, counts);
}

Status HierarchicalCommunicator::ScatterInNode(const Buffer& node_part, const Buffer& output,
                                               const std::vector<size_t>& counts) {
  std::vector<std::shared_ptr<Work>> sends;
  char* at = static_cast<char*>(node_part.data);
  const int first = layout_.FirstRank(node_rank_);
  for (int to = first; to < layout_.EndRank(node_rank_); ++to) {
    const size_t bytes = counts[to] * SizeOf(node_part.type);
    if (to != rank()) {
      sends.push_back(parts_.node->Send({at, counts[to], node_part.type}, to - first, 0));
    } else if (bytes > 0) {
      memcpy(output.data, at, bytes);
    }
    at += bytes;
  }
  // Waits for all of them even if one fails: they read the part.
  Status status;
  for (const auto& send : sends) status.Update(InNode(send));
  return status;
}

Status HierarchicalCommunicator::BroadcastNow(const Buffer& buffer, int root) {
  const int root_node = layout_.NodeOf(root);
  if (root_node == node_rank_) {
    RETURN_IF_ERROR(InNode(parts_.node->Broadcast(buffer, root - layout_.FirstRank(root_node))));
  }
  if (leads()) RETURN_IF_ERROR(BetweenNodes(parts_.leaders->Broadcast(buffer, root_node)));
  if (root_node == node_rank_) return OkStatus();
  return InNode(parts_.node->Broadcast(buffer, 0));
}

Status HierarchicalCommunicator::GatherNow(const Buffer& input, const Buffer& output,
                                           const std::vector<size_t>& counts) {
  const size_t element = SizeOf(input.type);
  const std::vector<size_t> node_counts = layout_.Sums(counts);
  const std::vector<size_t> own_counts(counts.begin() + layout_.FirstRank(node_rank_),
                                       counts.begin() + layout_.EndRank(node_rank_));
  // The node's part is already at its final place in the output.
  const size_t before =
      std::accumulate(node_counts.begin(), node_counts.begin() + node_rank_, size_t{0});
  const Buffer part = {static_cast<char*>(output.data) + before * element, node_counts[node_rank_],
                       output.type};
  RETURN_IF_ERROR(InNode(parts_.node->AllGatherVarying(input, part, own_counts)));
  if (leads()) {
    RETURN_IF_ERROR(BetweenNodes(parts_.leaders->AllGatherVarying(part, output, node_counts)));
  }
  return InNode(parts_.node->Broadcast(output, 0));
}

Result<std::unique_ptr<Communicator>> HierarchicalCommunicator::Split(int color, int key) {
  int32_t own = color;
  std::vector<int32_t> colors(size());
  RETURN_IF_ERROR(
      AllGather({&own, 1, DataType::kInt32}, {colors.data(), colors.size(), DataType::kInt32})
          ->Wait(std::chrono::nanoseconds::max()));
  std::map<int32_t, int> node_of_color;
  bool within_nodes = true;
  for (int rank = 0; rank < size(); ++rank) {
    if (colors[rank] < 0) continue;
    const auto [found, is_new] = node_of_color.emplace(colors[rank], layout_.NodeOf(rank));
    within_nodes = within_nodes && found->second == layout_.NodeOf(rank);
  }
  return within_nodes ? parts_.node->Split(color, key) : parts_.direct->Split(color, key);
}

Status HierarchicalCommunicator::AllocateNow(size_t bytes, Result<std::shared_ptr<void>>* memory) {
  *memory = parts_.node->AllocateBuffer(bytes);
  const Status own = AddContext("within node ", memory->status());
  if (!own.ok() && own.code() != StatusCode::kResourceExhausted) return own;
  int64_t all = own.ok() ? 1 : 0;
  RETURN_IF_ERROR(AllReduceNow({&all, 1, DataType::kInt64}, ReduceOp::kMin));
  if (!own.ok()) {
    *memory = own;
  } else if (all == 0) {
    *memory = ResourceExhaustedError(absl::StrCat("another node has no memory for ", bytes,
                                                  " bytes on communicator \"", name_, "\""));
  }
  // Lack of memory does not fail the communicator: all ranks know of it, and may continue.
  return OkStatus();
}

Result<std::shared_ptr<void>> HierarchicalCommunicator::AllocateBuffer(size_t bytes) {
  Result<std::shared_ptr<void>> memory = std::shared_ptr<void>();
  // Runs in the order of operations: the ranks of a node exchange their memory by a collective,
  // which must not come between those of a running operation. Each of them has its own deadline.
  RETURN_IF_ERROR(Start(OkStatus(), "allocation of a buffer", [&] {
                    return AllocateNow(bytes, &memory);
                  })->Wait(std::chrono::nanoseconds::max()));
  return memory;
}

WorkerPlace PlaceAmong(const WorkerPlace& place, int rank, int size, bool one_node) {
  WorkerPlace among = place;
  among.rank = rank;
  among.world_size = size;
  among.local_rank = one_node ? rank : 0;
  among.local_world_size = one_node ? size : 1;
  among.node_rank = one_node ? 0 : rank;
  among.nodes = one_node ? 1 : size;
  return among;
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectHierarchical(Worker& worker,
                                                          const CommunicatorOptions& options) {
  const WorkerPlace& place = worker.place();
  Parts parts;
  store::GroupWorker in_node(&worker, absl::StrCat("node/", place.node_rank),
                             PlaceAmong(place, place.local_rank, place.local_world_size, true));
  CommunicatorOptions patient = options;
  patient.timeout += kNodePatience;
  ASSIGN_OR_RETURN(parts.node, shared_memory::ConnectSharedMemory(in_node, patient));
  if (place.local_rank == 0) {
    store::GroupWorker leader(&worker, "leaders",
                              PlaceAmong(place, place.node_rank, place.nodes, false));
    ASSIGN_OR_RETURN(parts.leaders, sockets::ConnectSockets(leader, options));
  }
  store::GroupWorker everybody(&worker, "direct", place);
  ASSIGN_OR_RETURN(parts.direct, sockets::ConnectSockets(everybody, options));

  int32_t node = place.node_rank;
  std::vector<int32_t> nodes(place.world_size);
  RETURN_IF_ERROR(
      parts.direct
          ->AllGather({&node, 1, DataType::kInt32}, {nodes.data(), nodes.size(), DataType::kInt32})
          ->Wait(std::chrono::nanoseconds::max()));
  ASSIGN_OR_RETURN(NodeLayout layout, NodeLayout::Of(nodes));
  store::GroupWorker calls(&worker, "calls", place);
  ASSIGN_OR_RETURN(std::unique_ptr<sockets::PeerLinks> links,
                   sockets::ConnectPeerLinks(calls, options.name, options.timeout));
  return std::unique_ptr<Communicator>(std::make_unique<HierarchicalCommunicator>(
      std::move(parts), std::move(links), std::move(layout), place.node_rank, options));
}

Result<NodeLayout> NodeLayout::Of(const std::vector<int32_t>& nodes) {
  std::vector<int> first_ranks = {0};
  for (size_t rank = 1; rank < nodes.size(); ++rank) {
    if (nodes[rank] == nodes[rank - 1]) continue;
    if (nodes[rank] != nodes[rank - 1] + 1) {
      return FailedPreconditionError(absl::StrCat("ranks are not contiguous per node: rank ", rank,
                                                  " is on node ", nodes[rank], ", rank ", rank - 1,
                                                  " on node ", nodes[rank - 1]));
    }
    first_ranks.push_back(static_cast<int>(rank));
  }
  first_ranks.push_back(static_cast<int>(nodes.size()));
  return NodeLayout(std::move(first_ranks));
}

int NodeLayout::NodeOf(int rank) const {
  const auto next = std::upper_bound(first_ranks_.begin(), first_ranks_.end(), rank);
  return static_cast<int>(next - first_ranks_.begin()) - 1;
}

std::vector<size_t> NodeLayout::Sums(const std::vector<size_t>& counts) const {
  std::vector<size_t> sums;
  for (size_t node = 0; node + 1 < first_ranks_.size(); ++node) {
    sums.push_back(std::accumulate(counts.begin() + first_ranks_[node],
                                   counts.begin() + first_ranks_[node + 1], size_t{0}));
  }
  return sums;
}

}  // namespace cadre::hierarchical
