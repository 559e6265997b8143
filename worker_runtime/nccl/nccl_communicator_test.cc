// Runs on a GPU, or on a pretend one (worker_runtime/testing/pretend_gpu); skips elsewhere and says
// why.
#include "worker_runtime/nccl/nccl_communicator.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/nccl/nccl_ranks_for_test.h"
#include "worker_runtime/nccl/root_ids.h"
#include "worker_runtime/testing/bus_bandwidth.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre::nccl {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NcclWorldTest : public ::testing::TestWithParam<int> {};

TEST_P(NcclWorldTest, Reduces) {
  RunRanks(GetParam(), [](Worker& worker, NcclCommunicator& world) {
    const int n = world.size();
    EXPECT_EQ(world.rank(), worker.rank());
    const float mine = static_cast<float>(world.rank() + 1);
    const float sum = static_cast<float>(n * (n + 1) / 2);
    const Floats total = Make(world, std::vector<float>(1000, mine));
    const Floats mean = Make(world, std::vector<float>(1000, mine));
    const Floats scaled = Make(world, std::vector<float>(1000, 1));
    const Floats greatest = Make(world, std::vector<float>(1000, mine));
    const auto a = world.AllReduce(total.buffer(), ReduceOp::kSum);
    const auto b = world.AllReduce(mean.buffer(), ReduceOp::kAverage);
    const auto c = world.AllReduce(scaled.buffer(), {ReduceOp::kSum, mine});
    const auto d = world.AllReduce(greatest.buffer(), ReduceOp::kMax);
    for (const auto& work : {a, b, c, d}) EXPECT_OK(work->Wait(kLong));
    EXPECT_THAT(total.values(), Each(sum));
    EXPECT_THAT(mean.values(), Each(sum / static_cast<float>(n)));
    EXPECT_THAT(scaled.values(), Each(sum));
    EXPECT_THAT(greatest.values(), Each(static_cast<float>(n)));
    EXPECT_GT(a->duration(), std::chrono::nanoseconds(0));

    const Floats one = Make(world, {mine, mine});
    EXPECT_OK(world.Reduce(one.buffer(), ReduceOp::kSum, n - 1)->Wait(kLong));
    EXPECT_THAT(one.values(), Each(world.rank() == n - 1 ? sum : mine));
  });
}

// NCCL before 2.29.7 leaves out the last elements of what a single rank multiplies.
TEST_P(NcclWorldTest, MultipliesTheLastElementsToo) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    const float sum = static_cast<float>(world.size());
    for (const size_t count : {1, 4097, 17001, 131101}) {
      const Floats scaled = Make(world, std::vector<float>(count, 2));
      const Floats part = Make(world, std::vector<float>(count, 7));
      const Floats whole = Make(world, std::vector<float>(count * world.size(), 1));
      EXPECT_OK(world.AllReduce(scaled.buffer(), {ReduceOp::kSum, 0.5})->Wait(kLong));
      EXPECT_THAT(scaled.values(), Each(sum)) << count;
      const auto average = world.ReduceScatter(whole.buffer(), part.buffer(), ReduceOp::kAverage);
      EXPECT_OK(average->Wait(kLong));
      EXPECT_THAT(part.values(), Each(1)) << count;
    }
  });
}

TEST_P(NcclWorldTest, ReducesEveryType) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    const int n = world.size();
    const OnGpu<double> doubles(world, {1.5, 2.5}, DataType::kFloat64);
    const OnGpu<int32_t> ints(world, {1, -2}, DataType::kInt32);
    const OnGpu<int64_t> longs(world, {1, int64_t{1} << 40}, DataType::kInt64);
    const OnGpu<uint8_t> bytes(world, {1, 7}, DataType::kUint8);
    const OnGpu<uint16_t> halves(world, {0x3c00}, DataType::kFloat16);
    const OnGpu<uint16_t> brains(world, {0x3f80}, DataType::kBfloat16);
    EXPECT_OK(world.AllReduce(doubles.buffer(), ReduceOp::kSum)->Wait(kLong));
    EXPECT_OK(world.AllReduce(ints.buffer(), ReduceOp::kSum)->Wait(kLong));
    EXPECT_OK(world.AllReduce(longs.buffer(), ReduceOp::kSum)->Wait(kLong));
    EXPECT_OK(world.AllReduce(bytes.buffer(), ReduceOp::kMax)->Wait(kLong));
    EXPECT_OK(world.AllReduce(halves.buffer(), {ReduceOp::kAverage, 2})->Wait(kLong));
    EXPECT_OK(world.AllReduce(brains.buffer(), ReduceOp::kAverage)->Wait(kLong));
    EXPECT_THAT(doubles.values(), ElementsAre(1.5 * n, 2.5 * n));
    EXPECT_THAT(ints.values(), ElementsAre(n, -2 * n));
    EXPECT_THAT(longs.values(), ElementsAre(n, n * (int64_t{1} << 40)));
    EXPECT_THAT(bytes.values(), ElementsAre(1, 7));
    EXPECT_THAT(halves.values(), ElementsAre(0x4000));
    EXPECT_THAT(brains.values(), ElementsAre(0x3f80));
  });
}

TEST_P(NcclWorldTest, MovesData) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    const int n = world.size(), rank = world.rank();
    const float mine = static_cast<float>(rank + 1);
    const Floats everywhere = Make(world, std::vector<float>(10, mine));
    EXPECT_OK(world.Broadcast(everywhere.buffer(), n - 1)->Wait(kLong));
    EXPECT_THAT(everywhere.values(), Each(static_cast<float>(n)));

    std::vector<float> expected(n);
    std::iota(expected.begin(), expected.end(), 1.0f);
    const Floats part = Make(world, {mine});
    const Floats all = Make(world, std::vector<float>(n));
    EXPECT_OK(world.AllGather(part.buffer(), all.buffer())->Wait(kLong));
    EXPECT_EQ(all.values(), expected);
    EXPECT_OK(world.ReduceScatter(all.buffer(), part.buffer(), ReduceOp::kSum)->Wait(kLong));
    EXPECT_THAT(part.values(), Each(mine * static_cast<float>(n)));

    // Rank r gives r elements.
    std::vector<size_t> counts(n);
    std::iota(counts.begin(), counts.end(), size_t{0});
    std::vector<float> varying;
    for (int r = 0; r < n; ++r) varying.insert(varying.end(), counts[r], static_cast<float>(r));
    const Floats some = Make(world, std::vector<float>(counts[rank], static_cast<float>(rank)));
    const Floats joined = Make(world, std::vector<float>(varying.size()));
    EXPECT_OK(world.AllGatherVarying(some.buffer(), joined.buffer(), counts)->Wait(kLong));
    EXPECT_EQ(joined.values(), varying);
    EXPECT_OK(world.Barrier()->Wait(kLong));
  });
}

TEST_P(NcclWorldTest, AllocatesZeroedMemoryThatOutlivesIt) {
  std::shared_ptr<void> memory;
  RunRanks(GetParam(), [&memory](Worker&, NcclCommunicator& world) {
    auto allocated = world.AllocateBuffer(1 << 20);
    ASSERT_OK(allocated);
    memory = *allocated;
    std::vector<float> values((1 << 20) / sizeof(float), 7);
    ASSERT_OK(world.Barrier()->Wait(kLong));
    ASSERT_OK(cuda::CopyFromCudaDevice(values.data(), memory.get(), 1 << 20, nullptr));
    EXPECT_THAT(values, Each(0));
    EXPECT_THAT(world.AllocateBuffer(size_t{1} << 50), StatusIs(StatusCode::kResourceExhausted));
  });
}

TEST_P(NcclWorldTest, SplitsByColorAndKey) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    auto reversed = world.Split(0, -world.rank());
    if (reversed.status().code() == StatusCode::kUnimplemented) return;
    ASSERT_OK(reversed);
    EXPECT_EQ((*reversed)->size(), world.size());
    EXPECT_EQ((*reversed)->rank(), world.size() - 1 - world.rank());
    const Floats values = Make(**reversed, {1});
    EXPECT_OK((*reversed)->AllReduce(values.buffer(), ReduceOp::kSum)->Wait(kLong));
    EXPECT_THAT(values.values(), Each(static_cast<float>(world.size())));
    auto alone = world.Split(world.rank() == 0 ? -1 : world.rank(), 0);
    ASSERT_OK(alone);
    EXPECT_EQ(*alone == nullptr, world.rank() == 0);
    if (*alone != nullptr) {
      EXPECT_EQ((*alone)->size(), 1);
    }
  });
}

TEST_P(NcclWorldTest, MeasuresBusBandwidth) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    for (const size_t bytes : {size_t{4} << 10, size_t{1} << 20, size_t{64} << 20}) {
      auto memory = world.AllocateBuffer(bytes);
      ASSERT_OK(memory);
      const Buffer buffer = {memory->get(), bytes / sizeof(float), DataType::kFloat32};
      std::chrono::nanoseconds best = std::chrono::nanoseconds::max();
      for (int i = 0; i < 10; ++i) {
        const auto work = world.AllReduce(buffer, ReduceOp::kSum);
        ASSERT_OK(work->Wait(kLong));
        best = std::min(best, work->duration());
      }
      if (world.rank() != 0) continue;
      std::printf("all-reduce of %zu bytes, %d ranks on one GPU: %.1f us, bus %.2f GB/s\n", bytes,
                  world.size(), absl::ToDoubleMicroseconds(absl::FromChrono(best)),
                  testing::BusBandwidth(testing::Collective::kAllReduce, bytes,
                                        absl::FromChrono(best), world.size()) /
                      1e9);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclWorldTest, ::testing::Values(1, 2, 3));

TEST(NcclCommunicatorTest, SendsThereAndBack) {
  RunRanks(2, [](Worker&, NcclCommunicator& world) {
    const Floats values = Make(world, {world.rank() == 0 ? 5.0f : 0.0f});
    if (world.rank() == 0) {
      EXPECT_OK(world.Send(values.buffer(), 1, 0)->Wait(kLong));
      EXPECT_OK(world.Receive(values.buffer(), 1, 0)->Wait(kLong));
      EXPECT_THAT(values.values(), ElementsAre(5));
    } else {
      EXPECT_OK(world.Receive(values.buffer(), 0, 0)->Wait(kLong));
      EXPECT_THAT(values.values(), ElementsAre(5));
      EXPECT_OK(world.Send(values.buffer(), 0, 0)->Wait(kLong));
    }
  });
}

TEST(NcclCommunicatorTest, RefusesWhatCannotBe) {
  RunRanks(1, [](Worker&, NcclCommunicator& world) {
    const Floats values = Make(world, {1});
    EXPECT_THAT(world.AllReduce(values.buffer(), {ReduceOp::kMax, 2})->Wait(kLong),
                StatusIs(StatusCode::kUnimplemented, HasSubstr("before a sum")));
    EXPECT_THAT(world.Barrier()->Wait(kLong), StatusIs(StatusCode::kUnimplemented));
  });
}

TEST(NcclCommunicatorTest, AbortEndsWhatRuns) {
  RunRanks(2, [](Worker& worker, NcclCommunicator& world) {
    const Floats values = Make(world, {1});
    if (world.rank() == 0) {
      const auto work = world.AllReduce(values.buffer(), ReduceOp::kSum);
      EXPECT_THAT(work->Wait(std::chrono::milliseconds(100)),
                  StatusIs(StatusCode::kDeadlineExceeded));
      const MonoTime start = MonoNow();
      world.Abort();
      EXPECT_THAT(work->Wait(kLong), StatusIs(StatusCode::kAborted, HasSubstr("\"world\"")));
      EXPECT_LT(MonoNow() - start, absl::FromChrono(std::chrono::seconds(2)));
      ASSERT_OK(worker.Set("aborted", ""));
    } else {
      ASSERT_OK(worker.Get("aborted", kLong));
    }
  });
}

TEST(NcclCommunicatorTest, AStuckRankMeetsTheDeadline) {
  const auto body = [](Worker& worker, NcclCommunicator& world) {
    const Floats values = Make(world, {1});
    if (world.rank() == 0) {
      EXPECT_THAT(world.AllReduce(values.buffer(), ReduceOp::kSum)->Wait(kLong),
                  StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("all-reduce (sum) of 1")));
      ASSERT_OK(worker.Set("late", ""));
    } else {
      ASSERT_OK(worker.Get("late", kLong));
    }
  };
  RunRanks(2, body, std::chrono::seconds(10));
}

// Needs no GPU: rank 0 mints, the other processes get it through the store.
TEST(NcclIdTest, FourProcessesGetOneId) {
  testing::ForkedWorkers workers(4);
  workers.Start([](Worker& worker) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    auto formation = Formation::Begin(worker, "world");
    EXPECT_OK(formation);
    if (!formation.ok()) return 1;
    const auto ids = formation->ShareIds(1, MonoNow() + kLong);
    if (!ids.ok()) {
      formation->ReportFailure(ids.status());
      return Skip(worker, ids.status());
    }
    EXPECT_OK(worker.Set(absl::StrCat("id/", worker.rank()), ids->front()));
    // The id is a socket of rank 0's, which stays until all have it.
    EXPECT_OK(worker.Barrier("got", kLong));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  const int result = workers.WaitForAll();
  if (result == kSkipped) GTEST_SKIP() << *workers.observer().Get(kReason, kLong);
  ASSERT_EQ(result, 0);
  const auto first = workers.observer().Get("id/0", kLong);
  ASSERT_OK(first);
  for (int rank = 1; rank < 4; ++rank) {
    const auto id = workers.observer().Get(absl::StrCat("id/", rank), kLong);
    ASSERT_OK(id);
    EXPECT_EQ(*id, *first);
  }
}

}  // namespace
}  // namespace cadre::nccl
