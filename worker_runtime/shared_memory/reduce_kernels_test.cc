#include "worker_runtime/shared_memory/reduce_kernels.h"

#include <cstring>
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::shared_memory {
namespace {

class ReduceKernelsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !HasWideReduction()) GTEST_SKIP() << "this processor has no AVX2 and F16C";
  }
  void Run(const ElementReduction& reduction) {
    GetParam() ? ReduceElementsWide(reduction) : ReduceElementsPortably(reduction);
  }

  // Reduces every rank's values in place.
  template <typename T>
  void RunInPlace(std::vector<std::vector<T>>* ranks, DataType type, ReduceOp op,
                  std::vector<double> factors = {}) {
    std::vector<char*> data;
    for (auto& values : *ranks) data.push_back(reinterpret_cast<char*>(values.data()));
    ElementReduction call;
    call.type = type;
    call.op = op;
    call.inputs = data.data();
    call.factors = factors.empty() ? nullptr : factors.data();
    call.ranks = call.output_count = static_cast<int>(data.size());
    call.outputs = data.data();
    call.count = ranks->front().size();
    Run(call);
  }
};

TEST_P(ReduceKernelsTest, EveryOperationOnFloats) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    for (const size_t count : {size_t{1}, size_t{7}, size_t{2048}, size_t{5001}}) {
      std::vector<std::vector<float>> input(ranks, std::vector<float>(count));
      for (int r = 0; r < ranks; ++r) {
        for (size_t i = 0; i < count; ++i) input[r][i] = static_cast<float>((i * 7 + r * 13) % 64);
      }
      auto sum = input, average = input, max = input, min = input;
      RunInPlace(&sum, DataType::kFloat32, ReduceOp::kSum);
      RunInPlace(&average, DataType::kFloat32, ReduceOp::kAverage);
      RunInPlace(&max, DataType::kFloat32, ReduceOp::kMax);
      RunInPlace(&min, DataType::kFloat32, ReduceOp::kMin);
      for (size_t i = 0; i < count; ++i) {
        double expected = 0;
        float highest = 0, lowest = 64;
        for (const auto& values : input) {
          expected += values[i];
          highest = std::max(highest, values[i]);
          lowest = std::min(lowest, values[i]);
        }
        for (int r = 0; r < ranks; ++r) {
          ASSERT_EQ(sum[r][i], expected);
          ASSERT_FLOAT_EQ(average[r][i], static_cast<float>(expected / ranks));
          ASSERT_EQ(max[r][i], highest);
          ASSERT_EQ(min[r][i], lowest);
        }
      }
    }
  }
}

TEST_P(ReduceKernelsTest, EveryRanksFactorCounts) {
  for (const size_t ranks : {size_t{2}, size_t{3}}) {
    std::vector<std::vector<double>> values(ranks, std::vector<double>(3000, 1));
    std::vector<double> factors = {2, 0.5, 8};
    factors.resize(ranks);
    RunInPlace(&values, DataType::kFloat64, ReduceOp::kSum, factors);
    for (const auto& rank : values) EXPECT_THAT(rank, ::testing::Each(ranks == 2 ? 2.5 : 10.5));
  }
}

TEST_P(ReduceKernelsTest, HalvesAreRoundedOnce) {
  // 2048 + 1 + 1 is 2050, but would stay 2048 if it were rounded after each step.
  std::vector<std::vector<uint16_t>> halves = {std::vector<uint16_t>(100, 0x6800),
                                               std::vector<uint16_t>(100, 0x3c00),
                                               std::vector<uint16_t>(100, 0x3c00)};
  RunInPlace(&halves, DataType::kFloat16, ReduceOp::kSum);
  for (const auto& rank : halves) EXPECT_THAT(rank, ::testing::Each(0x6801));
  // 256 + 1 + 1 is 258, in bfloat16 likewise.
  std::vector<std::vector<uint16_t>> brains = {std::vector<uint16_t>(100, 0x4380),
                                               std::vector<uint16_t>(100, 0x3f80),
                                               std::vector<uint16_t>(100, 0x3f80)};
  RunInPlace(&brains, DataType::kBfloat16, ReduceOp::kSum);
  for (const auto& rank : brains) EXPECT_THAT(rank, ::testing::Each(0x4381));
}

TEST_P(ReduceKernelsTest, OneOutputLeavesTheInputsAlone) {
  std::vector<int32_t> a(70, 1), b(70, 2), c(70, 4), out(70);
  const char* inputs[] = {reinterpret_cast<char*>(a.data()), reinterpret_cast<char*>(b.data()),
                          reinterpret_cast<char*>(c.data())};
  char* outputs[] = {reinterpret_cast<char*>(out.data())};
  ElementReduction call;
  call.type = DataType::kInt32;
  call.inputs = inputs;
  call.ranks = 3;
  call.outputs = outputs;
  call.output_count = 1;
  call.count = out.size();
  Run(call);
  EXPECT_THAT(out, ::testing::Each(7));
  EXPECT_THAT(a, ::testing::Each(1));
}

INSTANTIATE_TEST_SUITE_P(Forms, ReduceKernelsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Wide" : "Portable"; });

}  // namespace
}  // namespace cadre::shared_memory
