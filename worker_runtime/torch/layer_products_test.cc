#include "worker_runtime/torch/layer_products.h"

#include "gtest/gtest.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

struct Case {
  int64_t samples, inputs, outputs;
  torch::ScalarType type;
};

// In blocks and not: few samples or many, a large weight or a small one, rows that no block
// divides.
class LayerProducts : public ::testing::TestWithParam<Case> {
 protected:
  LayerProducts() {
    torch::set_num_threads(1);
    torch::manual_seed(1);
  }
  torch::Tensor Random(int64_t rows, int64_t columns) const {
    return torch::randn({rows, columns}, GetParam().type);
  }
  const torch::NoGradGuard no_grad_;
  const torch::Tensor input_ = Random(GetParam().samples, GetParam().inputs);
  const torch::Tensor weight_ = Random(GetParam().outputs, GetParam().inputs);
  const torch::Tensor bias_ = torch::randn({GetParam().outputs}, GetParam().type);
  const torch::Tensor gradient_ = Random(GetParam().samples, GetParam().outputs);

  // Rounding of sums over `terms` products, in any order; a misplaced block is off by far more.
  void ExpectClose(const torch::Tensor& result, const torch::Tensor& a, const torch::Tensor& b,
                   const torch::Tensor& added = torch::zeros({1})) const {
    const auto exact = torch::mm(a.to(torch::kFloat64), b.to(torch::kFloat64)).add(added);
    ASSERT_EQ(result.sizes(), exact.sizes());
    EXPECT_TRUE(result.is_contiguous());
    EXPECT_EQ(result.scalar_type(), GetParam().type);
    EXPECT_LE((result.to(torch::kFloat64) - exact).abs().max().item<double>(), 1e-6 * a.size(1));
  }
};

TEST_P(LayerProducts, Output) {
  ExpectClose(LayerOutput(input_, weight_, bias_), input_, weight_.t(), bias_);
  ExpectClose(LayerOutput(input_, weight_, c10::nullopt), input_, weight_.t());
}

TEST_P(LayerProducts, InputGradient) {
  ExpectClose(LayerInputGradient(gradient_, weight_), gradient_, weight_);
}

TEST_P(LayerProducts, WeightGradient) {
  torch::Tensor result = torch::full_like(weight_, 7);
  LayerWeightGradient(gradient_, input_, result);
  ExpectClose(result, gradient_.t(), input_);
}

INSTANTIATE_TEST_SUITE_P(All, LayerProducts,
                         ::testing::Values(Case{8, 40, 30, torch::kFloat32},
                                           Case{32, 1024, 1100, torch::kFloat32},
                                           Case{1, 700, 2503, torch::kFloat32},
                                           Case{65, 1024, 1100, torch::kFloat32},
                                           Case{8, 1024, 1100, torch::kFloat64}));

}  // namespace
}  // namespace cadre::nn
