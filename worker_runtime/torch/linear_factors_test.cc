// cadre::nn::Linear layers wide enough that ranks exchange factors instead of gradients.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "torch/nn/functional/activation.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/ranks.h"
#include "worker_runtime/torch/data_parallel.h"
#include "worker_runtime/torch/linear.h"

namespace cadre::nn {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr int64_t kWidth = 1024;
constexpr size_t kWideBytes = kWidth * kWidth * sizeof(float);

template <typename Layer>
struct NetOf : torch::nn::Module {
  NetOf()
      : narrow(register_module("narrow", Layer(5, kWidth))),
        wide(register_module("wide", Layer(kWidth, kWidth))),
        last(register_module("last", Layer(torch::nn::LinearOptions(kWidth, 3).bias(false)))) {}
  torch::Tensor forward(torch::Tensor x, bool twice = false) {
    x = torch::tanh(wide(torch::relu(narrow(x))));
    return last(twice ? torch::tanh(wide(x)) : x);
  }
  Layer narrow, wide, last;
};
using Ours = NetOf<Linear>;
using Torchs = NetOf<torch::nn::Linear>;

void OnEachRank(int ranks, const std::function<void(Communicator&)>& body) {
  torch::set_num_threads(1);
  cadre::OnEachRank(ConnectSharedMemory, ranks, body, kLong);
}

DataParallelOptions With(bool factors) {
  DataParallelOptions options;
  options.exchange_factors = factors;
  options.reducer.timeout = options.timeout = kLong;
  options.reducer.fingerprint_every = 1;
  return options;
}

// The same net, trained with factors and, by libtorch's layers, without.
class Pair {
 public:
  explicit Pair(Communicator& communicator) : rank_(communicator.rank()) {
    torch::NoGradGuard no_grad;
    // Seeds are the process's, and ranks are its threads: what rank 0 drew goes to all.
    auto ours = DataParallel<Ours>::Create(ours_, communicator, With(true));
    auto torchs = DataParallel<Torchs>::Create(torchs_, communicator, With(false));
    EXPECT_OK(ours);
    EXPECT_OK(torchs);
    ours_model_ = *std::move(ours);
    torchs_model_ = *std::move(torchs);
    for (const auto& item : torchs_->named_parameters()) {
      ours_->named_parameters()[item.key()].copy_(item.value());
    }
  }

  // Both do a step; whether ours went by factors.
  bool Step(const std::function<void(DataParallel<Ours>&)>& ours,
            const std::function<void(DataParallel<Torchs>&)>& torchs) {
    ours(*ours_model_);
    const auto report = ours_model_->Finish();
    EXPECT_OK(report);
    torchs(*torchs_model_);
    EXPECT_OK(torchs_model_->Finish());
    CompareGradientsAndOptimize();
    return report.ok() && report->bytes < kWideBytes;
  }
  void StepWithoutData() {
    EXPECT_OK(ours_model_->StepWithoutData());
    EXPECT_OK(torchs_model_->StepWithoutData());
    CompareGradientsAndOptimize();
  }
  // At the end: that both nets are the same, and ours on all ranks.
  void CompareParameters() {
    for (const auto& item : torchs_->named_parameters()) {
      EXPECT_TRUE(torch::allclose(ours_->named_parameters()[item.key()], item.value(), 1e-3, 1e-5))
          << item.key();
    }
    EXPECT_OK(ours_model_->CheckParametersEqual(kLong));
  }
  // The same for both; `body` gets the model, the net and the optimizer.
  template <typename Body>
  bool Step(const Body& body) {
    return Step([&](auto& model) { body(model, *ours_, ours_sgd_); },
                [&](auto& model) { body(model, *torchs_, torchs_sgd_); });
  }
  // Of this rank in this step.
  torch::Tensor Input(int64_t rows) {
    return torch::sin(torch::arange(rows * 5).add(17 * rank_ + 5 * ++drawn_).to(torch::kFloat32))
        .view({rows, 5});
  }
  Ours& net() { return *ours_; }
  int rank() const { return rank_; }

 private:
  void CompareGradientsAndOptimize() {
    for (const auto& item : torchs_->named_parameters()) {
      EXPECT_TRUE(torch::allclose(ours_->named_parameters()[item.key()].grad(), item.value().grad(),
                                  1e-3, 1e-5))
          << item.key();
    }
    ours_sgd_.step();
    torchs_sgd_.step();
  }

  const int rank_;
  int drawn_ = 0;
  const std::shared_ptr<Ours> ours_ = std::make_shared<Ours>();
  const std::shared_ptr<Torchs> torchs_ = std::make_shared<Torchs>();
  torch::optim::SGD ours_sgd_{ours_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)};
  torch::optim::SGD torchs_sgd_{torchs_->parameters(),
                                torch::optim::SGDOptions(0.05).momentum(0.9)};
  std::unique_ptr<DataParallel<Ours>> ours_model_;
  std::unique_ptr<DataParallel<Torchs>> torchs_model_;
};

TEST(LinearFactors, TrainAsTorchsLayersDo) {
  for (const int ranks : {2, 3}) {
    OnEachRank(ranks, [](Communicator& communicator) {
      Pair pair(communicator);
      for (int step = 0; step < 5; ++step) {
        // As many samples as the rank has this time; the average is over samples.
        const int64_t rows = 1 + (step + pair.rank()) % 3;
        const torch::Tensor input = pair.Input(rows);
        const bool by_factors = pair.Step([&](auto& model, auto& net, auto&) {
          model.set_weight(static_cast<double>(rows));
          model.ZeroGrad();
          model.forward(input).pow(2).mean().backward();
          torch::nn::utils::clip_grad_norm_(net.parameters(), 0.5);
        });
        EXPECT_EQ(by_factors, step > 0) << step;
      }
      pair.CompareParameters();
    });
  }
}

TEST(LinearFactors, AWeightMayBeUsedTwice) {
  OnEachRank(2, [](Communicator& communicator) {
    Pair pair(communicator);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor input = pair.Input(4);
      EXPECT_EQ(pair.Step([&](auto& model, auto&, auto&) {
        model.ZeroGrad();
        model.forward(input, /*twice=*/true).pow(2).mean().backward();
      }),
                step > 0);
    }
    // More rows on rank 1 than there is room for.
    const torch::Tensor input = pair.Input(pair.rank() == 1 ? 40 : 4);
    pair.Step([&](auto& model, auto&, auto&) {
      model.ZeroGrad();
      model.forward(input, /*twice=*/true).pow(2).mean().backward();
    });
    pair.CompareParameters();
  });
}

TEST(LinearFactors, AWeightMayBeUsedElsewhere) {
  OnEachRank(2, [](Communicator& communicator) {
    Pair pair(communicator);
    for (int step = 0; step < 4; ++step) {
      const torch::Tensor input = pair.Input(4);
      pair.Step([&](auto& model, auto& net, auto&) {
        model.ZeroGrad();
        const torch::Tensor loss = model.forward(input).pow(2).mean();
        (step == 2 ? loss + net.wide->weight.pow(2).sum() * 0.01 : loss).backward();
      });
    }
    pair.CompareParameters();
  });
}

TEST(LinearFactors, GiveWayToWhatNeedsAGradient) {
  OnEachRank(2, [](Communicator& communicator) {
    Pair pair(communicator);
    const auto plain = [&](const torch::Tensor& input) {
      return pair.Step([&](auto& model, auto&, auto&) {
        model.ZeroGrad();
        model.forward(input).pow(2).mean().backward();
      });
    };
    plain(pair.Input(3));
    EXPECT_TRUE(plain(pair.Input(3)));
    // Local passes before the one that is reduced.
    const torch::Tensor first = pair.Input(3), second = pair.Input(3);
    EXPECT_FALSE(pair.Step([&](auto& model, auto&, auto&) {
      model.ZeroGrad();
      {
        typename std::decay_t<decltype(model)>::NoSync no_sync(model);
        model.forward(first).pow(2).mean().backward();
        EXPECT_OK(model.Finish());
      }
      model.forward(second).pow(2).mean().backward();
    }));
    // Added to what there is.
    const torch::Tensor third = pair.Input(3);
    EXPECT_FALSE(pair.Step([&](auto& model, auto&, auto& optimizer) {
      optimizer.zero_grad();
      model.forward(third).pow(2).mean().backward();
    }));
    for (int64_t step = 0; step < kWholeSteps; ++step) plain(pair.Input(3));
    EXPECT_TRUE(plain(pair.Input(3)));
    // A hook sees this rank's own gradient.
    int seen = 0;
    pair.net().wide->weight.register_hook(
        [&](const torch::Tensor& gradient) { seen += gradient.defined() ? 1 : 0; });
    EXPECT_FALSE(plain(pair.Input(3)));
    EXPECT_EQ(seen, 1);
    pair.CompareParameters();
  });
}

TEST(LinearFactors, ARankMayHaveNoMoreData) {
  OnEachRank(2, [](Communicator& communicator) {
    Pair pair(communicator);
    for (int step = 0; step < 4; ++step) {
      const torch::Tensor input = pair.Input(3);
      if (step == 2 && pair.rank() == 1) {
        pair.StepWithoutData();
        continue;
      }
      pair.Step([&](auto& model, auto&, auto&) {
        model.ZeroGrad();
        model.forward(input).pow(2).mean().backward();
      });
    }
    pair.CompareParameters();
  });
}

TEST(LinearFactors, TheRankWhoseInputIsNotFiniteIsNamed) {
  OnEachRank(2, [](Communicator& communicator) {
    const Linear net(kWidth, kWidth);
    auto model = DataParallel<LinearImpl>::Create(net.ptr(), communicator, With(true));
    ASSERT_OK(model);
    for (int step = 1; step <= 2; ++step) {
      torch::Tensor input = torch::ones({2, kWidth});
      if (step == 2 && communicator.rank() == 1) input[1][3] = NAN;
      (*model)->ZeroGrad();
      // The bias's gradient and the output are finite all the same.
      (*model)->forward(input).slice(1, 0, 0).sum().backward();
      const auto report = (*model)->Finish();
      if (step == 1) {
        ASSERT_OK(report);
      } else {
        EXPECT_THAT(report, StatusIs(absl::StatusCode::kOutOfRange,
                                     "a gradient is not finite in step 2: on rank 1 of 'weight'"));
      }
    }
  });
}

}  // namespace
}  // namespace cadre::nn
