// Parts of the ranks on a GPU, or on a pretend one; skips elsewhere and says why.
#include "worker_runtime/nccl/varying_parts.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/nccl/nccl_ranks_for_test.h"
#include "worker_runtime/testing/reference_reduction.h"

namespace cadre::nccl {
namespace {

using ::testing::HasSubstr;

constexpr DataType kTypes[] = {DataType::kFloat32,  DataType::kFloat64, DataType::kFloat16,
                               DataType::kBfloat16, DataType::kInt32,   DataType::kInt64,
                               DataType::kUint8};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin};

// Memory of the GPU for one buffer of a test after the other.
class Memory {
 public:
  Memory(Communicator& world, size_t bytes) {
    auto allocated = world.AllocateBuffer(bytes);
    EXPECT_OK(allocated);
    if (allocated.ok()) memory_ = *std::move(allocated);
  }
  // `first`: elements from the beginning on.
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

// What all ranks have of one size: nothing for rank 0, and more than 64 KiB for the last of three.
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

// Every type and operation, with a factor of each rank's own where NCCL has that.
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
      StatusCode::kUnimplemented, "before a sum", [](NcclCommunicator& world, const Floats& two) {
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
