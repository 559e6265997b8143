#include "worker_runtime/hooks/hook_thread.h"

#include <vector>

#include "base/status_macros.h"
#include "worker_runtime/reduce/element_scaling.h"
#include "worker_runtime/wait_or_abort.h"

namespace cadre::hooks {
namespace {

// Longer than any communicator lets one operation take: its own deadline, whose error says more,
// comes first.
constexpr absl::Duration kPatience = absl::Hours(25);

}  // namespace

absl::Status HookThread::AllReduce(Communicator& communicator, Buffer buffer, ReduceOp op) {
  bytes_given_ += buffer.count * SizeOf(buffer.type);
  return Wait(communicator, communicator.AllReduce(buffer, op));
}

absl::Status HookThread::SumFloats(Communicator& communicator, float* values, size_t count,
                                   DataType wire) {
  if (count == 0) return absl::OkStatus();
  if (wire == DataType::kFloat32) {
    return AllReduce(communicator, {values, count, wire}, ReduceOp::kSum);
  }
  std::vector<uint16_t> narrow(count);
  reduce::NarrowFromFloat(wire, values, count, narrow.data());
  RETURN_IF_ERROR(AllReduce(communicator, {narrow.data(), count, wire}, ReduceOp::kSum));
  reduce::WidenToFloat(wire, narrow.data(), count, values);
  return absl::OkStatus();
}

absl::Status HookThread::AllGather(Communicator& communicator, Buffer input, Buffer output) {
  bytes_given_ += input.count * SizeOf(input.type);
  return Wait(communicator, communicator.AllGather(input, output));
}

absl::Status HookThread::Broadcast(Communicator& communicator, Buffer buffer, int root) {
  if (communicator.rank() == root) bytes_given_ += buffer.count * SizeOf(buffer.type);
  return Wait(communicator, communicator.Broadcast(buffer, root));
}

absl::Status HookThread::Wait(Communicator& communicator, const std::shared_ptr<Work>& work) {
  return WaitOrAbort(communicator, work, kPatience);
}

}  // namespace cadre::hooks
