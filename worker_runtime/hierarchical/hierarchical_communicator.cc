#include "worker_runtime/hierarchical/hierarchical_communicator.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/gloo/call_watch.h"
#include "worker_runtime/gloo/gloo_communicator.h"
#include "worker_runtime/gloo/peer_links.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/store/group_worker.h"

namespace cadre::hierarchical {
namespace {

// Of each other, the ranks of a node wait longer than the leaders do: a leader that fails says why
// before the others of its node lose patience with it.
constexpr absl::Duration kNodePatience = absl::Seconds(5);

struct Parts {
  std::unique_ptr<Communicator> node;     // the ranks of this node
  std::unique_ptr<Communicator> leaders;  // null on ranks that lead no node
  std::unique_ptr<Communicator> direct;   // all ranks: messages and groups
};

class HierarchicalCommunicator : public Communicator {
 public:
  // `first_ranks[n]` is the first rank of node n; the last entry is the number of ranks.
  HierarchicalCommunicator(Parts parts, std::unique_ptr<gloo::PeerLinks> links,
                           std::vector<int> first_ranks, int node_rank,
                           const CommunicatorOptions& options)
      : parts_(std::move(parts)),
        first_ranks_(std::move(first_ranks)),
        node_rank_(node_rank),
        name_(options.name),
        timeout_(options.timeout + 2 * kNodePatience),
        watch_(rank(), size(), std::move(links),
               {[this](const absl::Status&) { AbortParts(); }, [] {}}) {}
  ~HierarchicalCommunicator() override { Abort(); }

  int rank() const override { return parts_.direct->rank(); }
  int size() const override { return parts_.direct->size(); }

  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override {
    absl::Status status = backend::CheckBuffer(buffer);
    status.Update(backend::CheckReduction(reduction, buffer.type));
    return Start(status,
                 absl::StrCat("all-reduce (", backend::Name(reduction.op), ") of ", Text(buffer)),
                 [this, buffer, reduction] { return AllReduceNow(buffer, reduction); });
  }

  std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root) override {
    absl::Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    status.Update(backend::CheckReduction(reduction, buffer.type));
    const std::string call = absl::StrCat("reduce (", backend::Name(reduction.op), ") to rank ",
                                          root, " of ", Text(buffer));
    return Start(status, call, [this, buffer, reduction, root]() -> absl::Status {
      std::vector<char> copy = CopyOf(buffer);
      RETURN_IF_ERROR(AllReduceNow({copy.data(), buffer.count, buffer.type}, reduction));
      if (rank() == root && !copy.empty()) memcpy(buffer.data, copy.data(), copy.size());
      return absl::OkStatus();
    });
  }

  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override {
    absl::Status status = backend::CheckScatter(input, output, size());
    status.Update(backend::CheckReduction(reduction, input.type));
    const std::string call =
        absl::StrCat("reduce-scatter (", backend::Name(reduction.op), ") of ", Text(output));
    return Start(status, call, [this, input, output, reduction]() -> absl::Status {
      std::vector<char> copy = CopyOf(input);
      RETURN_IF_ERROR(AllReduceNow({copy.data(), input.count, input.type}, reduction));
      const size_t bytes = output.count * SizeOf(output.type);
      if (bytes > 0) memcpy(output.data, copy.data() + rank() * bytes, bytes);
      return absl::OkStatus();
    });
  }

  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override {
    absl::Status status = backend::CheckRoot(root, size());
    status.Update(backend::CheckBuffer(buffer));
    return Start(status, absl::StrCat("broadcast from rank ", root, " of ", Text(buffer)),
                 [this, buffer, root] { return BroadcastNow(buffer, root); });
  }

  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override {
    return Start(backend::CheckGather(input, output, size()),
                 absl::StrCat("all-gather of ", Text(input)), [this, input, output] {
                   return GatherNow(input, output, std::vector<size_t>(size(), input.count));
                 });
  }

  std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                         absl::Span<const size_t> counts) override {
    return Start(
        backend::CheckVaryingGather(input, output, counts, rank(), size()),
        absl::StrCat("all-gather of ", Text(output), " in parts ", absl::StrJoin(counts, "+")),
        [this, input, output, parts = std::vector<size_t>(counts.begin(), counts.end())] {
          return GatherNow(input, output, parts);
        });
  }

  std::shared_ptr<Work> Barrier() override {
    return Start(absl::OkStatus(), "barrier", [this]() -> absl::Status {
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

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

  // Where the ranks of a node reduce it without copies.
  absl::StatusOr<std::shared_ptr<void>> AllocateBuffer(size_t bytes) override {
    return parts_.node->AllocateBuffer(bytes);
  }

  void Abort() override {
    watch_.TellLeave();
    thread_.Fail(absl::AbortedError(absl::StrCat("communicator \"", name_, "\" was aborted")));
    AbortParts();
  }

 private:
  bool leads() const { return parts_.leaders != nullptr; }

  std::shared_ptr<Work> Start(const absl::Status& check, const std::string& call,
                              const std::function<absl::Status()>& collective) {
    return thread_.Enqueue([this, check, call, collective]() -> absl::Status {
      absl::Status status = check;
      status.Update(watch_.BeginCall(call));
      if (status.ok()) {
        status = collective();
        // A part knows its own ranks only; the reason may lie elsewhere.
        if (!status.ok()) status = watch_.Explain({}, status, /*may_wait=*/true);
      }
      if (status.ok()) {
        watch_.EndCall();
        return status;
      }
      watch_.TellFailure(status);
      AbortParts();
      return absl::Status(status.code(), absl::StrCat(call, " on communicator \"", name_,
                                                      "\": ", status.message()));
    });
  }

  void AbortParts() {
    parts_.node->Abort();
    if (leads()) parts_.leaders->Abort();
    parts_.direct->Abort();
  }

  static std::string Text(const Buffer& buffer) {
    return absl::StrCat(buffer.count, " ", backend::Name(buffer.type));
  }

  static std::vector<char> CopyOf(const Buffer& buffer) {
    const char* const data = static_cast<const char*>(buffer.data);
    return std::vector<char>(data, data + buffer.count * SizeOf(buffer.type));
  }

  absl::Status InNode(const std::shared_ptr<Work>& work) {
    return Said("within node ", work->Wait(timeout_));
  }
  absl::Status BetweenNodes(const std::shared_ptr<Work>& work) {
    return Said("between the leaders of the nodes, as of node ", work->Wait(timeout_));
  }
  absl::Status Said(const char* where, const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(where, node_rank_, ": ", status.message()));
  }

  absl::Status AllReduceNow(const Buffer& buffer, Reduction reduction);
  absl::Status BroadcastNow(const Buffer& buffer, int root);
  absl::Status GatherNow(const Buffer& input, const Buffer& output,
                         const std::vector<size_t>& counts);
  int NodeOf(int rank) const {
    return static_cast<int>(std::upper_bound(first_ranks_.begin(), first_ranks_.end(), rank) -
                            first_ranks_.begin()) -
           1;
  }

  const Parts parts_;
  const std::vector<int> first_ranks_;
  const int node_rank_;
  const std::string name_;
  const absl::Duration timeout_;
  gloo::CallWatch watch_;
  // Last, so that it stops first.
  backend::OperationThread thread_;
};

absl::Status HierarchicalCommunicator::AllReduceNow(const Buffer& buffer, Reduction reduction) {
  if (reduction.op == ReduceOp::kAverage) {
    // Divided before the sum: the nodes' sums of 16-bit elements stay in range.
    reduction = Reduction(ReduceOp::kSum, reduction.premultiply / size());
  }
  RETURN_IF_ERROR(InNode(parts_.node->Reduce(buffer, reduction, 0)));
  if (leads()) RETURN_IF_ERROR(BetweenNodes(parts_.leaders->AllReduce(buffer, reduction.op)));
  return InNode(parts_.node->Broadcast(buffer, 0));
}

absl::Status HierarchicalCommunicator::BroadcastNow(const Buffer& buffer, int root) {
  const int root_node = NodeOf(root);
  if (root_node == node_rank_) {
    RETURN_IF_ERROR(InNode(parts_.node->Broadcast(buffer, root - first_ranks_[root_node])));
  }
  if (leads()) RETURN_IF_ERROR(BetweenNodes(parts_.leaders->Broadcast(buffer, root_node)));
  if (root_node == node_rank_) return absl::OkStatus();
  return InNode(parts_.node->Broadcast(buffer, 0));
}

absl::Status HierarchicalCommunicator::GatherNow(const Buffer& input, const Buffer& output,
                                                 const std::vector<size_t>& counts) {
  const size_t element = SizeOf(input.type);
  std::vector<size_t> node_counts;
  for (size_t node = 0; node + 1 < first_ranks_.size(); ++node) {
    node_counts.push_back(std::accumulate(counts.begin() + first_ranks_[node],
                                          counts.begin() + first_ranks_[node + 1], size_t{0}));
  }
  const std::vector<size_t> own_counts(counts.begin() + first_ranks_[node_rank_],
                                       counts.begin() + first_ranks_[node_rank_ + 1]);
  // The node's part lies in the output where it will stay.
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

absl::StatusOr<std::unique_ptr<Communicator>> HierarchicalCommunicator::Split(int color, int key) {
  int32_t own = color;
  std::vector<int32_t> colors(size());
  RETURN_IF_ERROR(
      AllGather({&own, 1, DataType::kInt32}, {colors.data(), colors.size(), DataType::kInt32})
          ->Wait(timeout_));
  std::map<int32_t, int> node_of_color;
  bool within_nodes = true;
  for (int rank = 0; rank < size(); ++rank) {
    if (colors[rank] < 0) continue;
    const auto [found, is_new] = node_of_color.emplace(colors[rank], NodeOf(rank));
    within_nodes = within_nodes && found->second == NodeOf(rank);
  }
  return within_nodes ? parts_.node->Split(color, key) : parts_.direct->Split(color, key);
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

absl::StatusOr<std::unique_ptr<Communicator>> ConnectHierarchical(
    Worker& worker, const CommunicatorOptions& options) {
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
    ASSIGN_OR_RETURN(parts.leaders, gloo::ConnectGloo(leader, options));
  }
  store::GroupWorker everybody(&worker, "direct", place);
  ASSIGN_OR_RETURN(parts.direct, gloo::ConnectGloo(everybody, options));

  int32_t node = place.node_rank;
  std::vector<int32_t> nodes(place.world_size);
  RETURN_IF_ERROR(
      parts.direct
          ->AllGather({&node, 1, DataType::kInt32}, {nodes.data(), nodes.size(), DataType::kInt32})
          ->Wait(options.timeout));
  std::vector<int> first_ranks = {0};
  for (int rank = 1; rank < place.world_size; ++rank) {
    if (nodes[rank] == nodes[rank - 1]) continue;
    if (nodes[rank] != nodes[rank - 1] + 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("ranks are not contiguous per node: rank ", rank, " is on node ",
                       nodes[rank], ", rank ", rank - 1, " on node ", nodes[rank - 1]));
    }
    first_ranks.push_back(rank);
  }
  first_ranks.push_back(place.world_size);
  const auto all_gather = [&](void* own, void* all, size_t bytes) {
    return parts.direct
        ->AllGather({own, bytes, DataType::kUint8},
                    {all, bytes * place.world_size, DataType::kUint8})
        ->Wait(options.timeout);
  };
  ASSIGN_OR_RETURN(std::unique_ptr<gloo::PeerLinks> links,
                   gloo::PeerLinks::Connect(place.rank, place.world_size, place.address, all_gather,
                                            MonoNow() + options.timeout));
  return std::unique_ptr<Communicator>(std::make_unique<HierarchicalCommunicator>(
      std::move(parts), std::move(links), std::move(first_ranks), place.node_rank, options));
}

}  // namespace cadre::hierarchical
