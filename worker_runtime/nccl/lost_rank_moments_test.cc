// A rank is killed or stopped at any moment of a loop of collectives between GPUs. On the pretend
// GPU, which judges each call besides. As in training, ranks have a communicator of the host, too,
// which names the rank; NCCL may say nothing at all, as where ranks share memory.
#include "worker_runtime/testing/lost_rank_moments.h"

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "cadre/connect.h"
#include "cadre/nccl/connect.h"
#include "worker_runtime/cuda/device.h"

namespace cadre::nccl {
namespace {

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
// Some chunks, so that a collective takes its time.
constexpr size_t kCounts[] = {100, 5000, 100000};
// Collectives that a rank starts before it waits for the first.
constexpr size_t kAhead = 20;

// One rank in one generation.
class Rank {
 public:
  Rank(Worker& worker, const testing::Moment& moment, std::atomic<int64_t>& steps)
      : worker_(worker), moment_(moment), steps_(steps), scope_(worker.rank()) {}

  testing::RankEnd Run() {
    Status status = Connect();
    if (!status.ok()) return {status, MonoNow()};
    while ((status = nccl_tells_ ? StepThatWaits() : StepThatRunsAhead()).ok()) ++steps_;
    gpus_->Abort();
    // Whatever is still on the GPU ends.
    for (const auto& work : works_) work->Wait(kLong).IgnoreError();
    const MonoTime ended = MonoNow();
    // The host is asked who it is: a peer that has given up looks to NCCL as one that has gone.
    status = host_->Barrier()->Wait(kLong);
    // Whom the host has yet to wait for, it has begun to wait for later than NCCL.
    return {status, moment_.fault == testing::RankFault::kStopped ? ended : MonoNow()};
  }

 private:
  Status Connect() {
    setenv("CADRE_PRETEND_NCCL_PEER_LOSS", nccl_tells_ ? "" : "hang", 1);
    const std::string name = moment_.name();
    ASSIGN_OR_RETURN(host_, ConnectCommunicator(worker_, {name.c_str(), moment_.timeout()}));
    NcclOptions options;
    options.name = name;
    options.timeout = moment_.timeout();
    options.device = worker_.rank();
    ASSIGN_OR_RETURN(stream_, cuda::CudaStream::Create());
    // As gradients have it, or else.
    if (moment_.number % 2 == 0) options.stream = stream_->handle();
    ASSIGN_OR_RETURN(gpus_, ConnectNccl(*host_, options));
    for (const size_t count : kCounts) {
      ASSIGN_OR_RETURN(auto memory, gpus_->AllocateBuffer(count * sizeof(float)));
      const std::vector<float> mine(count, static_cast<float>(worker_.rank()));
      RETURN_IF_ERROR(cuda::CopyToCudaDevice(memory.get(), mine.data(), count * sizeof(float),
                                             stream_->handle()));
      memory_.push_back(std::move(memory));
    }
    return stream_->Synchronize();
  }

  void StartCollectives() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      works_.push_back(
          gpus_->AllReduce({memory_[i].get(), kCounts[i], DataType::kFloat32}, ReduceOp::kAverage));
    }
    works_.push_back(gpus_->Broadcast({memory_[0].get(), kCounts[0], DataType::kFloat32}, 1));
  }

  // The GPU is some steps behind: who waits for it alone may wait for ever.
  Status StepThatRunsAhead() {
    StartCollectives();
    RETURN_IF_ERROR(host_->Barrier()->Wait(kLong));
    while (works_.size() > kAhead) {
      const Status first = works_.front()->Wait(std::chrono::milliseconds(20));
      if (works_.front()->done()) {
        RETURN_IF_ERROR(first);
        works_.pop_front();
      } else {
        RETURN_IF_ERROR(host_->Barrier()->Wait(kLong));
      }
    }
    return OkStatus();
  }

  Status StepThatWaits() {
    StartCollectives();
    RETURN_IF_ERROR(host_->Barrier()->Wait(kLong));
    for (; !works_.empty(); works_.pop_front()) {
      RETURN_IF_ERROR(works_.front()->Wait(kLong));
    }
    float last = 0;
    RETURN_IF_ERROR(
        cuda::CopyFromCudaDevice(&last, static_cast<float*>(memory_.back().get()) + kCounts[2] - 1,
                                 sizeof(last), stream_->handle()));
    RETURN_IF_ERROR(stream_->Synchronize());
    EXPECT_EQ(last, 1) << "the average of 0, 1 and 2";
    return OkStatus();
  }

  Worker& worker_;
  const testing::Moment& moment_;
  // Whether NCCL tells that a rank has gone.
  const bool nccl_tells_ = moment_.coin;
  std::atomic<int64_t>& steps_;
  const cuda::CudaDeviceScope scope_;
  std::unique_ptr<cuda::CudaStream> stream_;
  std::unique_ptr<Communicator> host_;
  std::unique_ptr<Communicator> gpus_;
  std::vector<std::shared_ptr<void>> memory_;
  // Not known to be done.
  std::deque<std::shared_ptr<Work>> works_;
};

testing::RankEnd Live(Worker& worker, const testing::Moment& moment, std::atomic<int64_t>& steps) {
  unsetenv("NCCL_HOSTID");
  return Rank(worker, moment, steps).Run();
}

TEST(LostRankMoments, TheOthersHaveTheCauseAndGoOnInPlace) { testing::RunMoments(25, 1, Live); }

TEST(LostRankMoments, AHundredTimes) { testing::RunMoments(100, 2, Live); }

}  // namespace
}  // namespace cadre::nccl
