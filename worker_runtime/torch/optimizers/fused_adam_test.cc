#include "cadre/torch/fused_adam.h"

#include <functional>
#include <memory>
#include <sstream>
#include <vector>

#include "cadre/torch/optimizer_state.h"
#include "gtest/gtest.h"
#include "torch/serialize.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

std::vector<torch::Tensor> Parameters() {
  std::vector<torch::Tensor> parameters;
  for (const int64_t count : {1, 7, 300}) {
    parameters.push_back(
        (torch::arange(count * 3, torch::kFloat32) * 0.7).sin().view({count, 3}).requires_grad_());
  }
  parameters.push_back(torch::ones({5}, torch::kFloat64).requires_grad_());
  return parameters;
}

// The last two have no gradient in every other step.
void FillGradients(const std::vector<torch::Tensor>& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor& grad = parameters[i].mutable_grad();
    grad = torch::Tensor();
    if (i >= 2 && step % 2 == 1) continue;
    grad = (parameters[i].detach() * (step + 1) + static_cast<double>(i)).cos();
  }
}

void ExpectClose(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-6, 1e-6)) << i << ": " << a[i] << " and " << b[i];
  }
}

template <typename Class>
struct Kind {
  using Optimizer = Class;
};

template <typename Plain, typename Fused, typename Options>
void ExpectSameSteps(const Options& first, const Options& second) {
  const auto train = [&](auto kind, const std::vector<torch::Tensor>& parameters) {
    using Optimizer = typename decltype(kind)::Optimizer;
    Groups groups;
    groups.emplace_back(std::vector<torch::Tensor>(parameters.begin(), parameters.begin() + 2),
                        std::make_unique<Options>(first));
    groups.emplace_back(std::vector<torch::Tensor>(parameters.begin() + 2, parameters.end()),
                        std::make_unique<Options>(second));
    Optimizer optimizer(groups, first);
    for (int step = 0; step < 20; ++step) {
      FillGradients(parameters, step);
      optimizer.step();
    }
  };
  const auto plain = Parameters(), fused = Parameters();
  train(Kind<Plain>(), plain);
  train(Kind<Fused>(), fused);
  ExpectClose(plain, fused);
}

TEST(FusedAdam, StepsAsAdam) {
  ExpectSameSteps<torch::optim::Adam, FusedAdam>(AdamOptions(1e-2),
                                                 AdamOptions(1e-1).weight_decay(0.1));
  ExpectSameSteps<torch::optim::Adam, FusedAdam>(AdamOptions(1e-2).amsgrad(true).eps(1e-4),
                                                 AdamOptions(0).betas({0.5, 0.6}));
}

TEST(FusedAdamW, StepsAsAdamW) {
  ExpectSameSteps<torch::optim::AdamW, FusedAdamW>(AdamWOptions(1e-2),
                                                   AdamWOptions(1e-1).weight_decay(0.1));
  ExpectSameSteps<torch::optim::AdamW, FusedAdamW>(AdamWOptions(1e-2).amsgrad(true),
                                                   AdamWOptions(0));
}

// What one saves the other goes on with.
TEST(FusedAdam, ItsStateIsAdams) {
  const auto expected = Parameters(), parameters = Parameters();
  torch::optim::Adam whole(expected, AdamOptions(1e-2));
  std::stringstream saved;
  {
    FusedAdam first(parameters, AdamOptions(1e-2));
    for (int step = 0; step < 4; ++step) {
      FillGradients(parameters, step);
      first.step();
    }
    torch::save(first, saved);
  }
  torch::optim::Adam second(parameters, AdamOptions(1e-2));
  torch::load(second, saved);
  for (int step = 0; step < 8; ++step) {
    FillGradients(expected, step);
    whole.step();
    if (step < 4) continue;
    FillGradients(parameters, step);
    second.step();
  }
  ExpectClose(expected, parameters);
  FusedAdam fused(parameters);
  EXPECT_EQ(KindOf(fused), KindOf(second));
}

TEST(FusedAdam, GivesTheClosuresLoss) {
  const auto parameters = Parameters();
  FusedAdam adam(parameters);
  const torch::Tensor loss = adam.step([&] {
    adam.zero_grad();
    torch::Tensor loss = parameters[0].pow(2).sum();
    loss.backward();
    return loss;
  });
  EXPECT_GT(loss.item<float>(), 0);
  EXPECT_TRUE(parameters[0].grad().defined());
}

TEST(FusedAdam, LetsAutogradNoticeThatItStepped) {
  torch::Tensor parameter = torch::ones({3}).requires_grad_();
  FusedAdam adam(std::vector<torch::Tensor>{parameter});
  const torch::Tensor loss = parameter.pow(3).sum();
  parameter.mutable_grad() = torch::ones({3});
  adam.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(FusedAdam, SaysOfSparseGradientsWhatAdamSays) {
  const torch::Tensor parameter = torch::ones({4, 2}).requires_grad_();
  parameter.mutable_grad() = torch::ones({4, 2}).to_sparse();
  FusedAdam adam(std::vector<torch::Tensor>{parameter});
  EXPECT_THROW(adam.step(), c10::Error);
}

}  // namespace
}  // namespace cadre::nn
