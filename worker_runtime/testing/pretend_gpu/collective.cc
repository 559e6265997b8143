#include "worker_runtime/testing/pretend_gpu/collective.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

#include <algorithm>
#include <cstring>

#include "worker_runtime/testing/pretend_gpu/elements.h"

namespace cadre::pretend_gpu {
namespace {

// What has to be the same on all ranks.
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
  // Operations that programs make are numbered by each rank for itself.
  call.op = IsReduction(operation) ? std::min<int32_t>(operation.op, ncclNumOps) : 0;
  const bool has_root = operation.kind == Kind::kReduce || operation.kind == Kind::kBroadcast;
  call.root = has_root ? operation.peer : 0;
  call.count = operation.count;
  return call;
}

// A sum with a factor meets a plain one, and an average, which is a sum with a factor of its own:
// the ranks need not know each other's.
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
    // Parts for each rank in turn, where the ranks get different ones.
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

  // `count` elements from `first` on of that part.
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

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS
