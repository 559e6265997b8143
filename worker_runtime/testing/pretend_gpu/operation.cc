#include "worker_runtime/testing/pretend_gpu/operation.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

#include "worker_runtime/testing/pretend_gpu/elements.h"

namespace cadre::pretend_gpu {
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
