// State that a communicator keeps from one call to the next must not outlive what it depends on.
#include <chrono>
#include <memory>
#include <vector>

#include "base/status_matchers.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::shared_memory {
namespace {

using ::testing::HasSubstr;

MATCHER_P(Gives, value, "") { return arg.ok() && *arg == value; }

constexpr std::chrono::nanoseconds kTimeout = std::chrono::seconds(30);
constexpr int kRanks = 3;
constexpr size_t kCount = 200;

// One rank with a buffer of the communicator.
class Rank {
 public:
  explicit Rank(Worker& worker) {
    auto connected = ConnectSharedMemory(worker, {"test", kTimeout});
    EXPECT_OK(connected);
    communicator_ = *std::move(connected);
    memory_ = Allocate();
  }

  Communicator& communicator() { return *communicator_; }
  int number() const { return communicator_->rank(); }
  float* data() { return static_cast<float*>(memory_.get()); }
  std::shared_ptr<void> Allocate() {
    auto memory = communicator_->AllocateBuffer(kCount * sizeof(float));
    EXPECT_OK(memory);
    return *std::move(memory);
  }
  void Free() { memory_ = nullptr; }

  // Every element is the rank's number and one; returns what becomes of the last of `count`.
  Result<float> Reduce(float* data, size_t count, Reduction reduction, int root = -1) {
    for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(number() + 1);
    const Buffer buffer = {data, count, DataType::kFloat32};
    const Status status = (root < 0 ? communicator_->AllReduce(buffer, reduction)
                                    : communicator_->Reduce(buffer, reduction, root))
                              ->Wait(kTimeout);
    if (!status.ok()) return status;
    return data[count - 1];
  }
  Result<float> Reduce(Reduction reduction) { return Reduce(data(), kCount, reduction); }
  // Until everything that can be kept is.
  void Repeat() {
    for (int i = 0; i < 3; ++i) EXPECT_THAT(Reduce(ReduceOp::kSum), Gives(6));
  }

 private:
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<void> memory_;
};

void WithRanks(const std::function<void(Rank&)>& body) {
  testing::InProcessWorkers(kRanks).Run([&](Worker& worker) {
    Rank rank(worker);
    rank.Repeat();
    body(rank);
  });
}

TEST(RepeatedCallsTest, OneRankChangesTheSize_IsNamed) {
  WithRanks([](Rank& rank) {
    const size_t count = rank.number() == 2 ? kCount - 1 : kCount;
    EXPECT_THAT(rank.Reduce(rank.data(), count, ReduceOp::kSum),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr("rank 0 an all-reduce (sum) of 200 float32, rank 2 an "
                                   "all-reduce (sum) of 199 float32")));
  });
}

TEST(RepeatedCallsTest, OneRankChangesTheOperation_IsNamed) {
  WithRanks([](Rank& rank) {
    EXPECT_THAT(rank.Reduce(rank.number() == 0 ? ReduceOp::kMax : ReduceOp::kSum),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr("rank 0 an all-reduce (max) of 200 float32, rank 1 an "
                                   "all-reduce (sum) of 200 float32")));
  });
}

TEST(RepeatedCallsTest, OneRankMakesAnotherCall_IsNamed) {
  WithRanks([](Rank& rank) {
    if (rank.number() != 1) {
      EXPECT_THAT(rank.Reduce(ReduceOp::kSum),
                  StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 1 a barrier")));
    } else {
      EXPECT_THAT(rank.communicator().Barrier()->Wait(kTimeout),
                  StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 1 a barrier")));
    }
  });
}

TEST(RepeatedCallsTest, EverythingElseInBetween_HasItsOwnResult) {
  WithRanks([](Rank& rank) {
    for (int round = 0; round < 3; ++round) {
      EXPECT_THAT(rank.Reduce(ReduceOp::kMax), Gives(3));
      EXPECT_THAT(rank.Reduce(ReduceOp::kAverage), Gives(2));
      EXPECT_THAT(rank.Reduce({ReduceOp::kSum, 10}), Gives(60));
      // One rank's factor alone: the others repeat their call.
      EXPECT_THAT(rank.Reduce({ReduceOp::kSum, rank.number() == 1 ? 11.0 : 10.0}), Gives(62));
      EXPECT_THAT(rank.Reduce(rank.data() + 64, 100, ReduceOp::kSum), Gives(6));
      EXPECT_THAT(rank.Reduce(rank.data(), kCount, ReduceOp::kSum, /*root=*/0),
                  Gives(rank.number() == 0 ? 6 : rank.number() + 1));
      ASSERT_OK(rank.communicator().Barrier()->Wait(kTimeout));
      rank.Repeat();
    }
  });
}

TEST(RepeatedCallsTest, OtherMemoryOfSomeRanks_IsReducedTogether) {
  WithRanks([](Rank& rank) {
    std::vector<float> ordinary(kCount);
    float* const data = rank.number() == 1 ? ordinary.data() : rank.data();
    for (int i = 0; i < 3; ++i) {
      EXPECT_THAT(rank.Reduce(data, kCount, ReduceOp::kSum), Gives(6));
    }
    rank.Repeat();
  });
}

TEST(RepeatedCallsTest, BuffersComeAndGo_NewMemoryIsReduced) {
  WithRanks([](Rank& rank) {
    const std::shared_ptr<void> other = rank.Allocate();
    rank.Repeat();
    // The next may lie where this lay.
    rank.Free();
    for (int i = 0; i < 3; ++i) {
      const std::shared_ptr<void> next = rank.Allocate();
      for (int k = 0; k < 3; ++k) {
        EXPECT_THAT(rank.Reduce(static_cast<float*>(next.get()), kCount, ReduceOp::kSum), Gives(6));
      }
    }
    EXPECT_THAT(rank.Reduce(static_cast<float*>(other.get()), kCount, ReduceOp::kSum), Gives(6));
  });
}

}  // namespace
}  // namespace cadre::shared_memory
