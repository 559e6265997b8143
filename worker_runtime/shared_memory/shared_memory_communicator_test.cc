#include "worker_runtime/shared_memory/shared_memory_communicator.h"

#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/no_threads.h"

namespace cadre::shared_memory {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMoreThanAnyMachineHas = size_t{1} << 50;

constexpr std::chrono::nanoseconds kTimeout = std::chrono::seconds(30);

// Runs `body` as every rank, each with a communicator.
void WithRanks(int ranks, const std::function<void(Communicator&)>& body,
               std::chrono::nanoseconds timeout = kTimeout) {
  testing::InProcessWorkers workers(ranks);
  workers.Run([&](Worker& worker) {
    auto communicator = ConnectSharedMemory(worker, {"test", timeout});
    ASSERT_OK(communicator);
    body(**communicator);
  });
}

Buffer Floats(std::vector<float>& values) {
  return {values.data(), values.size(), DataType::kFloat32};
}

// The value of element i on rank r. The values are small integers, so that sums are exact.
float Value(int rank, size_t i) { return static_cast<float>((i * 7 + rank * 13) % 101); }
float SumOver(int ranks, size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += Value(r, i);
  return sum;
}

void Fill(float* data, size_t count, int rank) {
  for (size_t i = 0; i < count; ++i) data[i] = Value(rank, i);
}

class SizesTest : public ::testing::TestWithParam<int> {};

TEST_P(SizesTest, AllReduce_OrdinaryMemory_SumsExactly) {
  const int ranks = GetParam();
  WithRanks(ranks, [&](Communicator& communicator) {
    for (const size_t count : {0, 1, 63, 1000, 20000, 700001}) {
      std::vector<float> data(count);
      Fill(data.data(), count, communicator.rank());
      ASSERT_OK(communicator.AllReduce(Floats(data), ReduceOp::kSum)->Wait(kTimeout));
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(data[i], SumOver(ranks, i)) << i << " of " << count;
    }
  });
}

TEST_P(SizesTest, AllReduce_AllocatedMemory_SumsExactlyWhereItIs) {
  const int ranks = GetParam();
  WithRanks(ranks, [&](Communicator& communicator) {
    for (const size_t count : {1, 1000, 700001}) {
      auto memory = communicator.AllocateBuffer(count * sizeof(float));
      ASSERT_OK(memory);
      float* const data = static_cast<float*>(memory->get());
      for (int round = 0; round < 3; ++round) {
        Fill(data, count, communicator.rank());
        ASSERT_OK(communicator.AllReduce({data, count, DataType::kFloat32}, ReduceOp::kSum)
                      ->Wait(kTimeout));
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], SumOver(ranks, i));
      }
    }
  });
}

TEST_P(SizesTest, AllReduce_SomeRanksMemoryAllocated_IsStillRight) {
  const int ranks = GetParam();
  WithRanks(ranks, [&](Communicator& communicator) {
    constexpr size_t kCount = 300001;
    auto memory = communicator.AllocateBuffer(kCount * sizeof(float));
    ASSERT_OK(memory);
    std::vector<float> ordinary(kCount);
    float* const data =
        communicator.rank() == 0 ? static_cast<float*>(memory->get()) : ordinary.data();
    Fill(data, kCount, communicator.rank());
    ASSERT_OK(
        communicator.AllReduce({data, kCount, DataType::kFloat32}, ReduceOp::kSum)->Wait(kTimeout));
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], SumOver(ranks, i));
  });
}

TEST_P(SizesTest, BroadcastGatherBarrier_MixedWithoutWaiting_KeepTheirOrder) {
  const int ranks = GetParam();
  WithRanks(ranks, [&](Communicator& communicator) {
    const int rank = communicator.rank(), root = ranks - 1;
    std::vector<float> small(10), large(400000), gathered(10 * ranks), sum(50000);
    Fill(sum.data(), sum.size(), rank);
    Fill(small.data(), small.size(), rank);
    if (rank == root) Fill(large.data(), large.size(), root);
    std::vector<std::shared_ptr<Work>> works;
    works.push_back(communicator.Broadcast(Floats(large), root));
    works.push_back(communicator.AllGather(Floats(small), Floats(gathered)));
    works.push_back(communicator.AllReduce(Floats(sum), ReduceOp::kSum));
    works.push_back(communicator.Barrier());
    works.push_back(communicator.AllReduce(Floats(small), ReduceOp::kMax));
    for (auto& work : works) ASSERT_OK(work->Wait(kTimeout));
    for (size_t i = 0; i < large.size(); ++i) ASSERT_EQ(large[i], Value(root, i));
    for (int peer = 0; peer < ranks; ++peer) {
      for (size_t i = 0; i < 10; ++i) ASSERT_EQ(gathered[peer * 10 + i], Value(peer, i));
    }
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], SumOver(ranks, i));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SizesTest, ::testing::Values(1, 2, 3, 5, 8),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST(SharedMemoryTest, DifferentCalls_AreNamedOnEveryRank) {
  WithRanks(3, [&](Communicator& communicator) {
    std::vector<float> data(communicator.rank() == 2 ? 8 : 4);
    EXPECT_THAT(communicator.AllReduce(Floats(data), ReduceOp::kSum)->Wait(kTimeout),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 0 an all-reduce (sum) of 4 float32"),
                               HasSubstr("rank 2 an all-reduce (sum) of 8 float32"))));
    // After that no call succeeds.
    EXPECT_FALSE(communicator.Barrier()->Wait(kTimeout).ok());
  });
}

TEST(SharedMemoryTest, RankThatStaysAway_IsNamedAtTheDeadline) {
  absl::Notification over;
  WithRanks(
      2,
      [&](Communicator& communicator) {
        if (communicator.rank() == 1) {
          over.WaitForNotification();
          return;
        }
        EXPECT_THAT(communicator.Barrier()->Wait(kTimeout),
                    StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("rank 1")));
        over.Notify();
      },
      std::chrono::milliseconds(100));
}

TEST(SharedMemoryTest, Abort_EndsEverybodysWait) {
  WithRanks(3, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      communicator.Abort();
      return;
    }
    EXPECT_THAT(communicator.Barrier()->Wait(kTimeout), StatusIs(StatusCode::kAborted));
  });
}

TEST(SharedMemoryTest, Abort_IsBlamedOnWhoAbortedFirst_AlsoByThoseBehindAMessage) {
  WithRanks(3, [&](Communicator& communicator) {
    if (communicator.rank() == 0) {
      communicator.Abort();
      return;
    }
    std::vector<float> value(1);
    EXPECT_THAT(communicator.Receive(Floats(value), communicator.rank() - 1, 0)->Wait(kTimeout),
                StatusIs(StatusCode::kAborted, HasSubstr("rank 0 has left")));
  });
}

TEST(SharedMemoryTest, AMessageWithoutAThread_FailsAndNamesTheLimit) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    auto connected = ConnectSharedMemory(worker, {"test", kTimeout});
    ASSERT_OK(connected);
    std::unique_ptr<Communicator> world = *std::move(connected);
    std::vector<float> values(4, 1);
    std::shared_ptr<Work> work;
    // NoThreads holds for the whole process, and the other rank's communicator starts a thread too.
    EXPECT_OK(worker.Barrier("connected", kTimeout));
    if (worker.rank() == 0) {
      // The other rank waits in the next barrier meanwhile.
      const testing::NoThreads none;
      work = world->Send(Floats(values), 1, 5);
    }
    EXPECT_OK(worker.Barrier("sent", kTimeout));
    if (worker.rank() == 1) work = world->Receive(Floats(values), 0, 5);
    if (worker.rank() == 0) {
      EXPECT_THAT(work->Wait(kTimeout),
                  StatusIs(StatusCode::kResourceExhausted, HasSubstr("ulimit -u")));
    } else {
      EXPECT_THAT(work->Wait(kTimeout), StatusIs(StatusCode::kAborted, HasSubstr("rank 0")));
    }
    // The communicator can be destroyed together with its messages.
    world.reset();
  });
}

TEST(SharedMemoryTest, AllocateBuffer_WithoutMemory_FailsOnEveryRank) {
  WithRanks(2, [&](Communicator& communicator) {
    EXPECT_THAT(communicator.AllocateBuffer(kMoreThanAnyMachineHas),
                StatusIs(StatusCode::kResourceExhausted));
  });
}

TEST(SharedMemoryTest, TwoCommunicatorsOfOneName_DoNotMix) {
  testing::InProcessWorkers workers(2);
  workers.Run([&](Worker& worker) {
    auto a = ConnectSharedMemory(worker, {"same", kTimeout});
    auto b = ConnectSharedMemory(worker, {"same", kTimeout});
    ASSERT_OK(a);
    ASSERT_OK(b);
    std::vector<float> one = {1}, two = {2};
    auto work = (*b)->AllReduce(Floats(two), ReduceOp::kSum);
    ASSERT_OK((*a)->AllReduce(Floats(one), ReduceOp::kSum)->Wait(kTimeout));
    ASSERT_OK(work->Wait(kTimeout));
    EXPECT_EQ(one[0], 2);
    EXPECT_EQ(two[0], 4);
  });
}

}  // namespace

// The state that a communicator keeps between calls must not outlive what it depends on.

namespace {

MATCHER_P(Gives, value, "") { return arg.ok() && *arg == value; }

constexpr int kRanks = 3;
constexpr size_t kCount = 200;

// One rank, with a buffer of the communicator.
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

  // Sets every element to the rank's number plus one, and returns the result in the last of
  // `count`.
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
  // Repeats the call until everything that the communicator can keep is kept.
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
      // Only one rank's factor changes: the others repeat their call.
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
    // The next allocation may have the address of this one.
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
