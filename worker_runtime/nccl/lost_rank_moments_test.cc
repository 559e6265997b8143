// Kills or stops a rank at any moment of a loop of collectives between GPUs, on the pretend GPU,
// which also checks each call. As in training, the ranks also have a communicator of the host,
// which names the rank; NCCL may report nothing at all, as it does between ranks that share memory.
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
// There are several chunks, so that a collective takes some time.
constexpr size_t kCounts[] = {100, 5000, 100000};
// A rank starts this many collectives before it waits for the first.
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
    // Everything that is still on the GPU ends.
    for (const auto& work : works_) work->Wait(kLong).IgnoreError();
    const MonoTime ended = MonoNow();
    // The host's communicator names the culprit: to NCCL a peer that gave up looks like one that
    // died.
    status = host_->Barrier()->Wait(kLong);
    // If the culprit is stopped, the host's timeout began later than NCCL's, so that wait is not
    // counted.
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
    // The stream is the caller's, as for gradients, or else NCCL's own.
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

  // The GPU is some steps behind: a rank that waited only for the GPU might wait forever.
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
  // Whether NCCL reports that a rank is gone.
  const bool nccl_tells_ = moment_.coin;
  std::atomic<int64_t>& steps_;
  const cuda::CudaDeviceScope scope_;
  std::unique_ptr<cuda::CudaStream> stream_;
  std::unique_ptr<Communicator> host_;
  std::unique_ptr<Communicator> gpus_;
  std::vector<std::shared_ptr<void>> memory_;
  // These may not be done yet.
  std::deque<std::shared_ptr<Work>> works_;
};

testing::RankEnd Live(Worker& worker, const testing::Moment& moment, std::atomic<int64_t>& steps) {
  unsetenv("NCCL_HOSTID");
  return Rank(worker, moment, steps).Run();
}

// Fault (collective): A rank is killed or stopped while GPUs reduce, even if NCCL does not notice
// -> The others have the cause within 10 s (19 of 20 within 1 s; a stopped rank: the communicator's
// timeout) and go on in place
TEST(LostRankMoments, TheOthersHaveTheCauseAndGoOnInPlace) { testing::RunMoments(25, 1, Live); }

TEST(LostRankMoments, AHundredTimes) { testing::RunMoments(100, 2, Live); }

}  // namespace
}  // namespace cadre::nccl
