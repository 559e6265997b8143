#include "worker_runtime/backend/solo_communicator.h"

#include <chrono>
#include <cstring>

#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::backend {
namespace {

class SoloCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override {
    Status status = CheckBuffer(buffer);
    status.Update(CheckReduction(reduction, buffer.type));
    if (status.ok()) reduce::MultiplyInPlace(buffer, reduction.premultiply);
    return Finish(status);
  }
  std::shared_ptr<Work> Reduce(Buffer buffer, Reduction reduction, int root) override {
    const Status status = CheckRoot(root, 1);
    return status.ok() ? AllReduce(buffer, reduction) : Finish(status);
  }
  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override {
    Status status = CheckScatter(input, output, 1);
    if (!status.ok()) return Finish(status);
    Copy(input, output);
    return AllReduce(output, reduction);
  }
  std::shared_ptr<Work> ReduceScatterVarying(Buffer input, Buffer output, Span<const size_t> counts,
                                             Reduction reduction) override {
    const Status status = CheckVaryingScatter(input, output, counts, 0, 1);
    return status.ok() ? ReduceScatter(input, output, reduction) : Finish(status);
  }
  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override {
    Status status = CheckRoot(root, 1);
    status.Update(CheckBuffer(buffer));
    return Finish(status);
  }
  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override {
    const Status status = CheckGather(input, output, 1);
    if (status.ok()) Copy(input, output);
    return Finish(status);
  }
  std::shared_ptr<Work> AllGatherVarying(Buffer input, Buffer output,
                                         Span<const size_t> counts) override {
    const Status status = CheckVaryingGather(input, output, counts, 0, 1);
    if (status.ok()) Copy(input, output);
    return Finish(status);
  }
  std::shared_ptr<Work> Barrier() override { return Finish(OkStatus()); }
  std::shared_ptr<Work> Send(Buffer, int to, int) override { return Finish(CheckPeer(to, 0, 1)); }
  std::shared_ptr<Work> Receive(Buffer, int from, int) override {
    return Finish(CheckPeer(from, 0, 1));
  }
  Result<std::unique_ptr<Communicator>> Split(int color, int) override {
    const Status status = Finish(OkStatus())->Wait(std::chrono::nanoseconds(0));
    if (!status.ok()) return status;
    return color < 0 ? nullptr : MakeSoloCommunicator();
  }

  void Abort() override {
    absl::MutexLock lock(&mutex_);
    if (status_.ok()) status_ = AbortedError("the communicator was aborted");
  }

 private:
  static void Copy(const Buffer& input, const Buffer& output) {
    if (input.count > 0) memmove(output.data, input.data, input.count * SizeOf(input.type));
  }

  std::shared_ptr<Work> Finish(const Status& status) {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
    return FinishedWork(status_);
  }

  absl::Mutex mutex_;
  Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Communicator> MakeSoloCommunicator() {
  return std::make_unique<SoloCommunicator>();
}

}  // namespace cadre::backend
