#include "worker_runtime/testing/pretend_gpu/collective.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "worker_runtime/testing/pretend_gpu/elements.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

namespace cadre::pretend_gpu {
namespace {

// The arguments that must be the same on all ranks.
struct Call {
  int32_t kind = 0;
  int32_t type = 0;
  int32_t op = 0;
  int32_t root = 0;
  uint64_t count = 0;
};

Call CallOf(const Operation& operation) {
  Call call;
  call.kind = static_cast<int32_t>(operation.kind);
  call.type = operation.type;
  // Each rank numbers its own ncclRedOpCreate... operations, so their numbers are not compared.
  call.op = IsReduction(operation) ? std::min<int32_t>(operation.op, ncclNumOps) : 0;
  const bool has_root = operation.kind == Kind::kReduce || operation.kind == Kind::kBroadcast;
  call.root = has_root ? operation.peer : 0;
  call.count = operation.count;
  return call;
}

// A sum with a factor matches a plain sum, and an average, which is a sum with its own factor: the
// ranks need not know each other's factors.
bool AgreeOnOp(int32_t one, int32_t other) {
  const auto is_sum = [](int32_t op) { return op == ncclSum || op == ncclAvg; };
  return one == other || (one == ncclNumOps && is_sum(other)) ||
         (other == ncclNumOps && is_sum(one));
}

bool Agree(const Call& one, const Call& other) {
  return one.kind == other.kind && one.type == other.type && AgreeOnOp(one.op, other.op) &&
         one.root == other.root && one.count == other.count;
}

Operation OperationOf(const Call& call) {
  Operation operation;
  operation.kind = static_cast<Kind>(call.kind);
  operation.type = static_cast<ncclDataType_t>(call.type);
  operation.op = static_cast<ncclRedOp_t>(call.op);
  operation.peer = call.root;
  operation.count = call.count;
  return operation;
}

class Collective {
 public:
  Collective(const Operation& operation, const Board& board, Meeting* meeting)
      : operation_(operation), board_(board), meeting_(*meeting) {}

  CollectiveResult Run() {
    if (!Compare()) return result_;
    const size_t ranks = static_cast<size_t>(board_.size());
    const size_t chunk = kPostBytes / SizeOf(operation_.type);
    // The buffer has a part for each rank in turn if the ranks get different results.
    const size_t parts = operation_.kind == Kind::kReduceScatter ? ranks : 1;
    const size_t count = ranks == 1 && !operation_.scalar.empty()
                             ? MultipliedByOneRank(operation_.type, operation_.count)
                             : operation_.count;
    for (size_t part = 0; part < parts; ++part) {
      for (size_t first = 0; first < count; first += chunk) {
        if (!Move(part, first, std::min(chunk, count - first))) return result_;
      }
    }
    return result_;
  }

 private:
  bool Compare() {
    char* const mine = meeting_.Begin(&result_.failure);
    if (mine == nullptr) return false;
    const Call call = CallOf(operation_);
    memcpy(mine, &call, sizeof(call));
    result_.failure = meeting_.Exchange();
    if (!result_.failure.ok()) return false;
    Call first;
    memcpy(&first, meeting_.Of(0), sizeof(first));
    for (int rank = 1; rank < board_.size() && result_.mistake.empty(); ++rank) {
      Call other;
      memcpy(&other, meeting_.Of(rank), sizeof(other));
      if (Agree(first, other)) continue;
      result_.mistake = "the ranks call different operations: rank 0 " +
                        NameOf(OperationOf(first)) + ", rank " + std::to_string(rank) + " " +
                        NameOf(OperationOf(other));
    }
    meeting_.End();
    return result_.mistake.empty();
  }

  // Moves `count` elements of that part, beginning with `first`.
  bool Move(size_t part, size_t first, size_t count) {
    const size_t size = SizeOf(operation_.type);
    const size_t at = (part * operation_.count + first) * size;
    char* const mine = meeting_.Begin(&result_.failure);
    if (mine == nullptr) return false;
    if (operation_.kind != Kind::kBroadcast || board_.rank() == operation_.peer) {
      memcpy(mine, AsDeviceSeesIt(operation_.send) + at, count * size);
    }
    if (!operation_.scalar.empty()) {
      Multiply(operation_.type, operation_.scalar.data(), count, mine);
    }
    result_.failure = meeting_.Exchange();
    if (!result_.failure.ok()) return false;
    Take(part, first, count);
    meeting_.End();
    return true;
  }

  void Take(size_t part, size_t first, size_t count) {
    const size_t size = SizeOf(operation_.type);
    char* const to =
        operation_.receive == nullptr ? nullptr : AsDeviceSeesIt(operation_.receive) + first * size;
    switch (operation_.kind) {
      case Kind::kAllReduce:
        return TakeReduced(count, to);
      case Kind::kReduce:
        if (board_.rank() == operation_.peer) TakeReduced(count, to);
        return;
      case Kind::kReduceScatter:
        if (part == static_cast<size_t>(board_.rank())) TakeReduced(count, to);
        return;
      case Kind::kBroadcast:
        memcpy(to, meeting_.Of(operation_.peer), count * size);
        return;
      case Kind::kAllGather:
        for (int rank = 0; rank < board_.size(); ++rank) {
          memcpy(to + static_cast<size_t>(rank) * operation_.count * size, meeting_.Of(rank),
                 count * size);
        }
        return;
      case Kind::kSend:
      case Kind::kReceive:
        return;
    }
  }

  void TakeReduced(size_t count, char* to) {
    std::vector<const char*> inputs;
    for (int rank = 0; rank < board_.size(); ++rank) inputs.push_back(meeting_.Of(rank));
    const bool has_factor = !operation_.scalar.empty();
    Reduce(operation_.type, has_factor ? ncclSum : operation_.op, inputs, count, to);
  }

  const Operation& operation_;
  const Board& board_;
  Meeting& meeting_;
  CollectiveResult result_;
};

}  // namespace

CollectiveResult RunCollective(const Operation& operation, const Board& board, Meeting* meeting) {
  return Collective(operation, board, meeting).Run();
}

namespace {

// One end of a transfer. The first parcel is empty: it announces what follows.
class Transfer {
 public:
  Transfer(const Operation& operation, const Board& board)
      : operation_(operation),
        is_send_(operation.kind == Kind::kSend),
        channel_(is_send_ ? board.channel(board.rank(), operation.peer)
                          : board.channel(operation.peer, board.rank())),
        left_(operation.count * SizeOf(operation.type)) {
    if (left_ > 0) {
      at_ = AsDeviceSeesIt(is_send_ ? operation.send : operation.receive);
    }
  }

  int peer() const { return operation_.peer; }
  bool is_send() const { return is_send_; }
  bool done() const { return agreed_ && left_ == 0; }
  const std::string& mistake() const { return mistake_; }

  // Advances as far as the other end allows; returns whether anything happened.
  bool Advance() {
    if (!announced_) return Announce();
    if (!agreed_) return Agree();
    return is_send_ ? Send() : Receive();
  }

 private:
  bool Announce() {
    if (is_send_) {
      if (channel_.posted != channel_.consumed) return false;
      channel_.count = operation_.count;
      channel_.type = operation_.type;
      ++channel_.posted;
      expectations_ = channel_.consumed;  // the receiver's answer comes with what it takes next
    } else {
      if (channel_.posted == channel_.consumed) return false;
      channel_.expected_count = operation_.count;
      channel_.expected_type = operation_.type;
      Judge(channel_.count, channel_.type, operation_.count, operation_.type);
      ++channel_.consumed;
      agreed_ = mistake_.empty();
    }
    announced_ = true;
    return true;
  }

  // On the sender: reads the receiver's answer to the announcement.
  bool Agree() {
    if (channel_.consumed == expectations_) return false;
    Judge(operation_.count, operation_.type, channel_.expected_count, channel_.expected_type);
    agreed_ = mistake_.empty();
    return true;
  }

  void Judge(uint64_t sent, int sent_type, uint64_t expected, int expected_type) {
    if (sent == expected && sent_type == expected_type) return;
    mistake_ = "what is sent is not what is received: ncclSend of " + std::to_string(sent) + " " +
               NameOf(static_cast<ncclDataType_t>(sent_type)) + ", ncclRecv of " +
               std::to_string(expected) + " " + NameOf(static_cast<ncclDataType_t>(expected_type));
  }

  bool Send() {
    if (channel_.posted != channel_.consumed) return false;
    const size_t bytes = std::min(left_, kParcelBytes);
    memcpy(channel_.data, at_, bytes);
    Step(bytes);
    ++channel_.posted;
    return true;
  }

  bool Receive() {
    if (channel_.posted == channel_.consumed) return false;
    const size_t bytes = std::min(left_, kParcelBytes);
    memcpy(at_, channel_.data, bytes);
    Step(bytes);
    ++channel_.consumed;
    return true;
  }

  void Step(size_t bytes) {
    at_ += bytes;
    left_ -= bytes;
  }

  const Operation operation_;
  const bool is_send_;
  Channel& channel_;
  char* at_ = nullptr;
  size_t left_ = 0;
  uint64_t expectations_ = 0;
  bool announced_ = false;
  bool agreed_ = false;
  std::string mistake_;
};

using Transfers = std::vector<std::unique_ptr<Transfer>>;

// Advances the first transfer that is not done, for each peer and direction.
bool AdvanceAll(const Transfers& transfers) {
  bool moved = false;
  for (size_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = *transfers[i];
    const auto goes_first = [&transfer](const std::unique_ptr<Transfer>& other) {
      return !other->done() && other->peer() == transfer.peer() &&
             other->is_send() == transfer.is_send();
    };
    const auto begin = transfers.begin();
    if (transfer.done() || std::any_of(begin, begin + static_cast<ptrdiff_t>(i), goes_first)) {
      continue;
    }
    while (!transfer.done() && transfer.mistake().empty() && transfer.Advance()) moved = true;
  }
  return moved;
}

}  // namespace

CollectiveResult RunTransfers(const std::vector<Operation>& operations, const Board& board) {
  Transfers transfers;
  std::vector<int> peers;
  for (const Operation& operation : operations) {
    transfers.push_back(std::make_unique<Transfer>(operation, board));
    peers.push_back(operation.peer);
  }
  CollectiveResult result;
  const auto all_done = [&] {
    return std::all_of(transfers.begin(), transfers.end(),
                       [](const std::unique_ptr<Transfer>& transfer) { return transfer->done(); });
  };
  while (!all_done()) {
    result.failure = board.Wait([&] { return AdvanceAll(transfers); }, peers);
    for (const auto& transfer : transfers) {
      if (result.mistake.empty()) result.mistake = transfer->mistake();
    }
    if (!result.ok()) return result;
  }
  return result;
}

namespace {

const char* FunctionOf(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "ncclAllReduce";
    case Kind::kReduce:
      return "ncclReduce";
    case Kind::kReduceScatter:
      return "ncclReduceScatter";
    case Kind::kBroadcast:
      return "ncclBroadcast";
    case Kind::kAllGather:
      return "ncclAllGather";
    case Kind::kSend:
      return "ncclSend";
    case Kind::kReceive:
      return "ncclRecv";
  }
  return "";
}

}  // namespace

bool IsTransfer(const Operation& operation) {
  return operation.kind == Kind::kSend || operation.kind == Kind::kReceive;
}

bool IsReduction(const Operation& operation) {
  return operation.kind == Kind::kAllReduce || operation.kind == Kind::kReduce ||
         operation.kind == Kind::kReduceScatter;
}

std::string NameOf(const Operation& operation) {
  std::string name = FunctionOf(operation.kind);
  if (IsReduction(operation)) name += " (" + NameOf(operation.op) + ")";
  if (operation.kind == Kind::kReduce) name += " to rank " + std::to_string(operation.peer);
  if (operation.kind == Kind::kBroadcast) name += " from rank " + std::to_string(operation.peer);
  if (operation.kind == Kind::kSend) name += " to rank " + std::to_string(operation.peer);
  if (operation.kind == Kind::kReceive) name += " from rank " + std::to_string(operation.peer);
  return name + " of " + std::to_string(operation.count) + " " + NameOf(operation.type);
}

std::vector<Use> UsesOf(const Operation& operation, int rank, int size) {
  const size_t part = operation.count * SizeOf(operation.type);
  const size_t whole = part * static_cast<size_t>(size);
  const Use reads = {operation.send, part, false};
  const Use writes = {operation.receive, part, true};
  switch (operation.kind) {
    case Kind::kAllReduce:
      return {reads, writes};
    case Kind::kReduce:
      if (rank == operation.peer) return {reads, writes};
      return {reads};
    case Kind::kReduceScatter:
      return {{operation.send, whole, false}, writes};
    case Kind::kBroadcast:
      if (rank == operation.peer) return {reads, writes};
      return {writes};
    case Kind::kAllGather:
      return {reads, {operation.receive, whole, true}};
    case Kind::kSend:
      return {reads};
    case Kind::kReceive:
      return {writes};
  }
  return {};
}

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS
