// Runs on a GPU or on a pretend one (worker_runtime/testing/pretend_gpu). Elsewhere it skips and
// gives the reason.
#include "worker_runtime/nccl/nccl_communicator.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "cadre/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/nccl/device_collective.h"
#include "worker_runtime/nccl/nccl_ranks_for_test.h"
#include "worker_runtime/nccl/root_ids.h"
#include "worker_runtime/testing/bus_bandwidth.h"
#include "worker_runtime/testing/forked_workers.h"
#include "worker_runtime/testing/reference_reduction.h"

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

// NCCL before 2.29.7 omits the last elements of what a single rank multiplies.
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

    // Rank r contributes r elements.
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
                StatusIs(StatusCode::kUnimplemented, HasSubstr("only with sum and average")));
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

// Needs no GPU: rank 0 creates the id, and the other processes get it through the store.
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
    // The id refers to a socket of rank 0, which must stay open until all have the id.
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

// Tests parts of varying size on a GPU or on a pretend one. Elsewhere it skips and gives the
// reason.

namespace {

constexpr DataType kTypes[] = {DataType::kFloat32,  DataType::kFloat64, DataType::kFloat16,
                               DataType::kBfloat16, DataType::kInt32,   DataType::kInt64,
                               DataType::kUint8};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin};

// Memory of the GPU that a test's buffers use one after the other.
class Memory {
 public:
  Memory(Communicator& world, size_t bytes) {
    auto allocated = world.AllocateBuffer(bytes);
    EXPECT_OK(allocated);
    if (allocated.ok()) memory_ = *std::move(allocated);
  }
  // `first` counts elements from the beginning.
  Buffer At(size_t first, size_t count, DataType type) const {
    return {static_cast<char*>(memory_.get()) + first * SizeOf(type), count, type};
  }
  void Write(const std::vector<char>& bytes) const {
    EXPECT_OK(cuda::CopyToCudaDevice(memory_.get(), bytes.data(), bytes.size(), nullptr));
  }

 private:
  std::shared_ptr<void> memory_;
};

std::vector<char> BytesOf(const Buffer& buffer) {
  std::vector<char> bytes(buffer.count * SizeOf(buffer.type));
  EXPECT_OK(cuda::CopyFromCudaDevice(bytes.data(), buffer.data, bytes.size(), nullptr));
  return bytes;
}

// The layout of all ranks' parts: rank 0's is empty, and the last of three has more than 64 KiB.
struct Layout {
  explicit Layout(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      begins.push_back(total);
      counts.push_back(rank == 0 && ranks > 1 ? 0 : rank == 1 ? 7 : 17001);
      total += counts.back();
    }
  }
  std::vector<size_t> counts, begins;
  size_t total = 0;
};

struct Scatter {
  DataType type;
  Reduction reduction;
  bool multiplies;
};

// Returns every type and operation, with a different factor on each rank where NCCL supports that.
std::vector<Scatter> AllScatters(int rank) {
  std::vector<Scatter> all;
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (op == ReduceOp::kAverage && !IsFloatingPoint(type)) continue;
      all.push_back({type, op, false});
      const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
      if (!is_sum || !IsFloatingPoint(type)) continue;
      all.push_back({type, {op, testing::FactorOf(rank)}, true});
    }
  }
  return all;
}

class NcclPartsTest : public ::testing::TestWithParam<int> {};

TEST_P(NcclPartsTest, ReduceScatterOfVaryingSizes) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    const int rank = world.rank();
    const Layout layout(world.size());
    const Memory from(world, layout.total * 8), to(world, layout.total * 8);
    uint32_t seed = 0;
    for (const Scatter& scatter : AllScatters(rank)) {
      const auto inputs = testing::ElementsOfAll(scatter.type, layout.total, world.size(), ++seed);
      from.Write(inputs[rank]);
      const Buffer input = from.At(0, layout.total, scatter.type);
      const Buffer output = to.At(0, layout.counts[rank], scatter.type);
      ASSERT_OK(
          world.ReduceScatterVarying(input, output, layout.counts, scatter.reduction)->Wait(kLong));
      EXPECT_TRUE(BytesOf(input) == inputs[rank]) << "the input has changed";
      testing::ExpectReduced(BytesOf(output).data(), output.count, inputs, scatter.type,
                             scatter.reduction, scatter.multiplies, layout.begins[rank]);
    }
  });
}

TEST_P(NcclPartsTest, TheWholeMayContainThePart) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    const int rank = world.rank();
    const DataType type = DataType::kFloat32;
    const Layout layout(world.size());
    const Memory memory(world, layout.total * SizeOf(type));
    const auto inputs = testing::ElementsOfAll(type, layout.total, world.size(), 5);
    memory.Write(inputs[rank]);
    const Buffer whole = memory.At(0, layout.total, type);
    const Buffer own = memory.At(layout.begins[rank], layout.counts[rank], type);
    ASSERT_OK(world.ReduceScatterVarying(whole, own, layout.counts, ReduceOp::kSum)->Wait(kLong));
    testing::ExpectReduced(BytesOf(own).data(), own.count, inputs, type, ReduceOp::kSum, false,
                           layout.begins[rank]);
    ASSERT_OK(world.AllGatherVarying(own, whole, layout.counts)->Wait(kLong));
    testing::ExpectReduced(BytesOf(whole).data(), whole.count, inputs, type, ReduceOp::kSum, false,
                           0);
  });
}

TEST_P(NcclPartsTest, EqualPartsAndNone) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    const int ranks = world.size(), rank = world.rank();
    const DataType type = DataType::kFloat32;
    const Memory memory(world, 10 * ranks * SizeOf(type));
    for (const size_t count : {size_t{0}, size_t{10}}) {
      const std::vector<size_t> counts(ranks, count);
      const auto inputs = testing::ElementsOfAll(type, count * ranks, ranks, 6);
      memory.Write(inputs[rank]);
      const Buffer whole = memory.At(0, count * ranks, type);
      const Buffer own = memory.At(count * rank, count, type);
      ASSERT_OK(world.ReduceScatterVarying(whole, own, counts, ReduceOp::kSum)->Wait(kLong));
      ASSERT_OK(world.AllGatherVarying(own, whole, counts)->Wait(kLong));
      testing::ExpectReduced(BytesOf(whole).data(), whole.count, inputs, type, ReduceOp::kSum,
                             false, 0);
    }
  });
}

TEST_P(NcclPartsTest, ReducesToEveryRank) {
  RunRanks(GetParam(), [](Worker&, NcclCommunicator& world) {
    constexpr size_t kCount = 1001;
    const int rank = world.rank();
    const Memory memory(world, kCount * 8);
    uint32_t seed = 100;
    for (const Scatter& scatter : AllScatters(rank)) {
      const int root = static_cast<int>(++seed) % world.size();
      const auto inputs = testing::ElementsOfAll(scatter.type, kCount, world.size(), seed);
      memory.Write(inputs[rank]);
      const Buffer buffer = memory.At(0, kCount, scatter.type);
      ASSERT_OK(world.Reduce(buffer, scatter.reduction, root)->Wait(kLong));
      if (rank == root) {
        testing::ExpectReduced(BytesOf(buffer).data(), kCount, inputs, scatter.type,
                               scatter.reduction, scatter.multiplies, 0);
      } else {
        EXPECT_TRUE(BytesOf(buffer) == inputs[rank]) << "changed on a rank that is not the root";
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclPartsTest, ::testing::Values(1, 2, 3));

using Start = std::function<std::shared_ptr<Work>(NcclCommunicator& world, const Floats& two)>;

void ExpectRefused(StatusCode code, const std::string& text, const Start& start) {
  RunRanks(1, [&](Worker&, NcclCommunicator& world) {
    const Floats two = Make(world, {1, 2});
    EXPECT_THAT(start(world, two)->Wait(kLong), StatusIs(code, HasSubstr(text)));
    EXPECT_EQ(two.values(), (std::vector<float>{1, 2}));
  });
}

TEST(NcclPartsErrorsTest, CountsThatDoNotFitTheBuffers) {
  ExpectRefused(
      StatusCode::kInvalidArgument, "1 ranks needs 1 counts, not 2",
      [](NcclCommunicator& world, const Floats& two) {
        return world.ReduceScatterVarying(two.buffer(), two.buffer(), {1, 1}, ReduceOp::kSum);
      });
  ExpectRefused(StatusCode::kInvalidArgument, "of 1 of 1 elements got an input of 2 float32",
                [](NcclCommunicator& world, const Floats& two) {
                  return world.ReduceScatterVarying(two.buffer(), two.buffer(), {1},
                                                    ReduceOp::kSum);
                });
}

TEST(NcclPartsErrorsTest, ReductionsThatCannotBe) {
  ExpectRefused(
      StatusCode::kUnimplemented, "only with sum and average",
      [](NcclCommunicator& world, const Floats& two) {
        return world.ReduceScatterVarying(two.buffer(), two.buffer(), {2}, {ReduceOp::kMin, 2});
      });
  ExpectRefused(StatusCode::kInvalidArgument, "can be averaged",
                [](NcclCommunicator& world, const Floats& two) {
                  Buffer integers = two.buffer();
                  integers.type = DataType::kInt32;
                  return world.ReduceScatterVarying(integers, integers, {2}, ReduceOp::kAverage);
                });
}

}  // namespace

}  // namespace cadre::nccl
