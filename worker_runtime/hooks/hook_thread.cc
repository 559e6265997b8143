#include "worker_runtime/hooks/hook_thread.h"

#include <chrono>
#include <vector>

#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::hooks {
namespace {

// Longer than any communicator lets one operation take: its own deadline, whose error says more,
// comes first.
constexpr std::chrono::nanoseconds kPatience = std::chrono::hours(25);

}  // namespace

Status HookThread::AllReduce(Communicator& communicator, Buffer buffer, ReduceOp op) {
  bytes_given_ += buffer.count * SizeOf(buffer.type);
  return Wait(communicator, communicator.AllReduce(buffer, op));
}

Status HookThread::SumFloats(Communicator& communicator, float* values, size_t count,
                             DataType wire) {
  if (count == 0) return OkStatus();
  if (wire == DataType::kFloat32) {
    return AllReduce(communicator, {values, count, wire}, ReduceOp::kSum);
  }
  std::vector<uint16_t> narrow(count);
  reduce::NarrowFromFloat(wire, values, count, narrow.data());
  RETURN_IF_ERROR(AllReduce(communicator, {narrow.data(), count, wire}, ReduceOp::kSum));
  reduce::WidenToFloat(wire, narrow.data(), count, values);
  return OkStatus();
}

Status HookThread::AllGather(Communicator& communicator, Buffer input, Buffer output) {
  bytes_given_ += input.count * SizeOf(input.type);
  return Wait(communicator, communicator.AllGather(input, output));
}

Status HookThread::Broadcast(Communicator& communicator, Buffer buffer, int root) {
  if (communicator.rank() == root) bytes_given_ += buffer.count * SizeOf(buffer.type);
  return Wait(communicator, communicator.Broadcast(buffer, root));
}

Status HookThread::Wait(Communicator& communicator, const std::shared_ptr<Work>& work) {
  return WaitOrAbort(communicator, work, kPatience);
}

}  // namespace cadre::hooks
