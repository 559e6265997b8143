#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/autocast.h"
#include "cadre/torch/sharded_grad_scaler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/modules/linear.h"
#include "torch/utils.h"
#include "torch/version.h"
#include "worker_runtime/torch/mixed_precision/scaled_training_for_test.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EachWrapper : public ::testing::TestWithParam<std::tuple<Where, Wrapper>> {
 protected:
  struct Training {
    int steps = 10;
    bool scaled = false;
    // The steps whose loss overflows on one rank; a training without a scaler leaves them out.
    std::set<int> overflows = {};
    std::optional<torch::ScalarType> autocast = {};
  };
  static Where where() { return std::get<0>(GetParam()); }
  static Wrapper wrapper() { return std::get<1>(GetParam()); }

  static torch::Tensor Loss(Trained& trained, Communicator& communicator, int step,
                            std::optional<torch::ScalarType> autocast) {
    const torch::Device device = DeviceFor(where(), communicator);
    std::optional<Autocast> in_16_bits;
    if (autocast) in_16_bits.emplace(device.type(), *autocast);
    const torch::Tensor input = InputFor(communicator.rank(), step, device);
    return trained.Forward(input).to(torch::kFloat32).pow(2).mean();
  }

  // Returns each rank's parameters after some steps.
  static RanksValues Train(int ranks, const Training& training, Wrapper wrapper) {
    RanksValues values(static_cast<size_t>(ranks));
    OnEachRank(ranks, [&](Communicator& communicator) {
      Trained trained(wrapper, where(), communicator);
      auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
      ASSERT_OK(scaler);
      if (training.scaled) trained.UseScaler(scaler->get());
      // float16 by itself overflows at the first scales.
      const bool may_overflow = training.autocast == torch::kFloat16;
      for (int step = 0; step < training.steps; ++step) {
        const bool overflows = training.overflows.count(step) > 0;
        if (overflows && !training.scaled) continue;
        const bool here = overflows && step % ranks == communicator.rank();
        const torch::Tensor loss = Loss(trained, communicator, step, training.autocast);
        const bool stepped = trained.Train(loss * (here ? kInfinity : 1.0f));
        EXPECT_TRUE(stepped != overflows || (may_overflow && !stepped)) << step;
      }
      values[static_cast<size_t>(communicator.rank())] = trained.Values();
    });
    return values;
  }
};

std::string NameOfWrapper(const ::testing::TestParamInfo<std::tuple<Where, Wrapper>>& info) {
  const char* const wrappers[] = {"DataParallel", "Stage1", "Stage2",
                                  "FullySharded", "Hybrid", "DistributedOptimizer"};
  return NameOfWay(std::get<0>(info.param)) + wrappers[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    Each, EachWrapper,
    ::testing::Combine(EachWay(),
                       ::testing::Values(Wrapper::kDataParallel, Wrapper::kStage1, Wrapper::kStage2,
                                         Wrapper::kFullySharded, Wrapper::kHybrid,
                                         Wrapper::kDistributedOptimizer)),
    NameOfWrapper);

// Scales are powers of two, so that float32 gradients have the same bits.
TEST_P(EachWrapper, TrainsAsWithoutAScaleButForWhatOverflows) {
  for (const int ranks : {1, 2, 3, 4}) {
    Training scaled;
    scaled.scaled = true;
    scaled.overflows = {0, 1, 5};
    Training unscaled = scaled;
    unscaled.scaled = false;
    const RanksValues ours = Train(ranks, scaled, wrapper());
    const RanksValues theirs = Train(ranks, unscaled, wrapper());
    ExpectClose(ours, theirs, /*same_bits=*/true);
    for (const RanksValues& values : {ours, theirs}) {
      for (const auto& one : values) ExpectSame(one, values[0]);
    }
  }
}

TEST_P(EachWrapper, In16BitsIsAsUnsharded) {
  if (!HasAutocast(where() == Where::kHost ? torch::kCPU : pretend::Device().type()))
    GTEST_SKIP() << "no autocast there";
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kFloat16}) {
    if (type == torch::kFloat16 && TORCH_VERSION_MAJOR < 2) continue;
    for (const int ranks : {1, 2}) {
      Training training;
      training.scaled = true;
      training.overflows = {2};
      training.autocast = type;
      ExpectClose(Train(ranks, training, wrapper()), Train(ranks, training, Wrapper::kDataParallel),
                  /*same_bits=*/wrapper() != Wrapper::kDistributedOptimizer);
    }
  }
}

// The value that is not finite is in one rank's part alone; each rank is tried.
TEST_P(EachWrapper, AllRanksSkipForOneRanksGradient) {
  if (wrapper() == Wrapper::kDistributedOptimizer) GTEST_SKIP() << "does it in one call";
  constexpr int kRanks = 3;
  OnEachRank(kRanks, [&](Communicator& communicator) {
    Trained trained(wrapper(), where(), communicator);
    auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
    ASSERT_OK(scaler);
    trained.UseScaler(scaler->get());
    ASSERT_TRUE(trained.Train(Loss(trained, communicator, 0, {})));
    const auto before = trained.Values();
    for (int bad = 0; bad < kRanks; ++bad) {
      trained.Backward(Loss(trained, communicator, bad, {}));
      if (bad == communicator.rank()) {
        const torch::NoGradGuard no_grad;
        const auto own = trained.OwnParameters(communicator);
        ASSERT_FALSE(own.empty());
        own.back().mutable_grad().view(-1)[0] = bad == 0 ? kInfinity : std::nanf("");
      }
      EXPECT_THAT(trained.Step(), Stepped(false));
      EXPECT_TRUE((*scaler)->found_non_finite(trained.plain()));
      EXPECT_OK((*scaler)->Update());
      EXPECT_EQ((*scaler)->scale(), 65536 / (2 << bad));
      ExpectSame(trained.Values(), before);
    }
    ASSERT_TRUE(trained.Train(Loss(trained, communicator, 7, {})));
  });
}

// The other tests run on the host, with one wrapper.
TEST(ShardedGradScaler, GrowsAndShrinks) {
  WithStage2(2, [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    std::vector<double> scales;
    std::vector<int64_t> trackers;
    for (int step = 0; step < 9; ++step) {
      const bool bad = step == 2 && communicator.rank() == 1;
      trained.Train(LossOf(communicator, trained, step) * (bad ? kInfinity : 1.0f));
      scales.push_back(scaler.scale());
      trackers.push_back(scaler.growth_tracker());
    }
    EXPECT_THAT(scales,
                ElementsAre(65536, 65536, 32768, 32768, 32768, 65536, 65536, 65536, 131072));
    EXPECT_THAT(trackers, ElementsAre(1, 2, 0, 1, 2, 0, 1, 2, 0));
  });
}

TEST(ShardedGradScaler, GrowsToNoMoreThanFloat32) {
  WithStage2(
      1,
      [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
        const double largest = std::ldexp(1.0, 127);
        ASSERT_OK(scaler.Update(largest));
        // The gradients are small enough not to overflow at that scale.
        ASSERT_TRUE(trained.Train(LossOf(communicator, trained) * 1e-30));
        EXPECT_EQ(scaler.scale(), largest);
        EXPECT_EQ(scaler.growth_tracker(), 0);
      },
      /*growth_interval=*/1);
}

// The gradients of such a loss are 0 in float16.
TEST(ShardedGradScaler, KeepsSmallGradientsFromVanishing) {
  if (TORCH_VERSION_MAJOR < 2) GTEST_SKIP() << "no float16 on the host";
  for (const bool scaled : {false, true}) {
    OnEachRank(2, [&](Communicator& communicator) {
      Trained trained(Wrapper::kFullySharded, Where::kHost, communicator);
      auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
      ASSERT_OK(scaler);
      if (scaled) trained.UseScaler(scaler->get());
      torch::Tensor loss;
      {
        const Autocast half(torch::kCPU, torch::kFloat16);
        loss = trained.Forward(InputFor(communicator.rank(), 0, torch::kCPU))
                   .to(torch::kFloat32)
                   .pow(2)
                   .mean() *
               1e-9;
      }
      trained.Backward(loss);
      if (scaled) {
        ASSERT_OK((*scaler)->Unscale(trained.plain()));
      }
      double largest = 0;
      for (const torch::Tensor& shard : trained.OwnParameters(communicator)) {
        largest = std::max(largest, shard.grad().abs().max().item<double>());
      }
      EXPECT_EQ(largest > 0, scaled) << largest;
    });
  }
}

TEST(ShardedGradScaler, GradientsAreUnscaledForClipping) {
  WithStage2(2, [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    trained.Backward(LossOf(communicator, trained));
    const auto scaled = trained.sharded().ClipGradNorm(1e9);
    ASSERT_OK(scaler.Unscale(trained.sharded()));
    const auto norm = trained.sharded().ClipGradNorm(1e9);
    ASSERT_OK(scaled);
    ASSERT_OK(norm);
    EXPECT_EQ(*scaled, *norm * 65536);
    EXPECT_THAT(scaler.Step(trained.sharded()), Stepped(true));
    EXPECT_OK(scaler.Update());
  });
}

TEST(ShardedGradScaler, EachOptimizerSkipsForItsOwnGradients) {
  OnEachRank(2, [](Communicator& communicator) {
    auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
    ASSERT_OK(scaler);
    torch::Tensor a = torch::ones({3}).requires_grad_(), b = torch::ones({3}).requires_grad_();
    torch::optim::SGD first({a}, 0.5), second({b}, 0.5);
    const bool bad = communicator.rank() == 1;
    (*scaler)->Scale(a.sum() * (bad ? kInfinity : 1.0f)).backward();
    (*scaler)->Scale(b.sum()).backward();
    EXPECT_THAT((*scaler)->Step(first), Stepped(false));
    EXPECT_THAT((*scaler)->Step(second), Stepped(true));
    EXPECT_OK((*scaler)->Update());
    EXPECT_EQ((*scaler)->scale(), 32768);
    EXPECT_TRUE(a.detach().equal(torch::ones({3})));
    EXPECT_TRUE(b.detach().equal(torch::full({3}, 0.5f)));
  });
}

// The gradients are checked with and without the fused check.
TEST(ShardedGradScaler, GradientsOfSeveralTypesAndDevices) {
  OnEachRank(1, [](Communicator& communicator) {
    for (const torch::ScalarType type :
         {torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
      for (const torch::Device device : {torch::Device(torch::kCPU), pretend::Device()}) {
        for (const float bad : {1.0f, kInfinity, -kInfinity, std::nanf("")}) {
          auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
          ASSERT_OK(scaler);
          ASSERT_OK((*scaler)->Update(1024));
          torch::Tensor other = torch::ones({2}).requires_grad_();
          torch::Tensor weight = torch::ones({5}).to(device, type).requires_grad_();
          torch::optim::SGD sgd({other, weight}, 0.5);
          (*scaler)->Scale(other.sum()).backward();
          torch::Tensor gradient = torch::arange(1, 6).to(type);
          gradient[3] = bad;
          weight.mutable_grad() = gradient.to(device);
          ASSERT_OK((*scaler)->Unscale(sgd));
          EXPECT_EQ((*scaler)->found_non_finite(sgd), bad != 1.0f);
          EXPECT_TRUE(other.grad().equal(torch::ones({2})));
          EXPECT_TRUE(weight.grad().cpu().narrow(0, 0, 3).equal(
              (torch::arange(1, 4).to(torch::kFloat32) / 1024).to(type)))
              << type << weight.grad();
        }
      }
    }
  });
}

TEST(ShardedGradScaler, ARankMayHaveNoGradients) {
  OnEachRank(2, [](Communicator& communicator) {
    auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
    ASSERT_OK(scaler);
    torch::Tensor weight = torch::ones({3}).requires_grad_();
    torch::optim::SGD sgd({weight}, 0.5);
    if (communicator.rank() == 1) (*scaler)->Scale(weight.sum() * kInfinity).backward();
    EXPECT_THAT((*scaler)->Step(sgd), Stepped(false));
    EXPECT_OK((*scaler)->Update());
    EXPECT_EQ((*scaler)->scale(), 32768);
  });
}

TEST(ShardedGradScaler, NotEnabledDoesNothing) {
  OnEachRank(2, [](Communicator& communicator) {
    GradScalerOptions options;
    options.enabled = false;
    auto scaler = ShardedGradScaler::Create(communicator, options);
    ASSERT_OK(scaler);
    torch::Tensor weight = torch::ones({3}).requires_grad_();
    torch::optim::SGD sgd({weight}, 0.5);
    EXPECT_EQ((*scaler)->scale(), 1);
    (*scaler)->Scale(weight.sum() * 2).backward();
    EXPECT_OK((*scaler)->Unscale(sgd));
    EXPECT_THAT((*scaler)->Step(sgd), Stepped(true));
    EXPECT_OK((*scaler)->Update());
    EXPECT_TRUE(weight.detach().equal(torch::zeros({3})));
    torch::serialize::OutputArchive archive;
    (*scaler)->SaveState(archive);
    torch::serialize::InputArchive saved = ArchiveOf(TextOf(archive));
    EXPECT_OK((*scaler)->LoadState(saved));
  });
}

}  // namespace

// Errors of ShardedGradScaler, and its state.

namespace {

TEST(ShardedGradScaler, ShrinksToNothingIsAnError) {
  WithStage2(1, [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    ASSERT_OK(scaler.Update(std::numeric_limits<float>::denorm_min()));
    trained.Backward(LossOf(communicator, trained) * kInfinity);
    EXPECT_THAT(trained.Step(), Stepped(false));
    EXPECT_THAT(scaler.Update(),
                StatusIs(StatusCode::kOutOfRange, HasSubstr("not finite at any scale")));
  });
}

TEST(ShardedGradScaler, UnscalingTwiceIsAnError) {
  WithStage2(2, [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    trained.Backward(LossOf(communicator, trained));
    ASSERT_OK(scaler.Unscale(trained.sharded()));
    EXPECT_THAT(scaler.Unscale(trained.sharded()),
                StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank "), HasSubstr("Unscale() was called twice"),
                               HasSubstr("call Update() at the end"))));
    EXPECT_THAT(scaler.Step(trained.sharded()), StatusIs(StatusCode::kFailedPrecondition));
  });
}

TEST(ShardedGradScaler, UnscalingAfterTheStepIsAnError) {
  WithStage2(2, [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    trained.Backward(LossOf(communicator, trained));
    ASSERT_OK(trained.Step());
    EXPECT_THAT(
        scaler.Unscale(trained.sharded()),
        StatusIs(StatusCode::kFailedPrecondition, HasSubstr("Unscale() was called after Step()")));
  });
}

TEST(ShardedGradScaler, SteppingTwiceIsAnError) {
  WithStage2(2, [](Communicator& communicator, Trained& trained, ShardedGradScaler&) {
    trained.Backward(LossOf(communicator, trained));
    ASSERT_OK(trained.Step());
    EXPECT_THAT(trained.Step(),
                StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("Step() was called twice"), HasSubstr("Update()"))));
  });
}

TEST(ShardedGradScaler, AStepWithoutGradientsIsAnError) {
  WithStage2(2, [](Communicator&, Trained& trained, ShardedGradScaler&) {
    EXPECT_THAT(trained.Step(), StatusIs(StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr("no rank has a gradient"),
                                               HasSubstr("call Scale(loss).backward()"))));
  });
}

TEST(ShardedGradScaler, AStepOfALossThatNobodyScaledIsAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
    ASSERT_OK(scaler);
    torch::Tensor weight = torch::ones({3}).requires_grad_();
    torch::optim::SGD sgd({weight}, 0.5);
    weight.sum().backward();
    EXPECT_THAT((*scaler)->Step(sgd),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("no rank has scaled")));
  });
}

TEST(ShardedGradScaler, AnUpdateWithoutAStepIsAnError) {
  WithStage2(2, [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    EXPECT_THAT(scaler.Update(), StatusIs(StatusCode::kFailedPrecondition,
                                          AllOf(HasSubstr("Update() was called without a Step()"),
                                                HasSubstr("call Step()"))));
    // Such an error does not end the training.
    EXPECT_TRUE(trained.Train(LossOf(communicator, trained)));
    EXPECT_THAT(scaler.Update(), StatusIs(StatusCode::kFailedPrecondition));
    EXPECT_THAT(scaler.Update(0), StatusIs(StatusCode::kInvalidArgument));
    EXPECT_THAT(scaler.Update(std::nan("")), StatusIs(StatusCode::kInvalidArgument));
    EXPECT_THAT(scaler.Update(1e39), StatusIs(StatusCode::kInvalidArgument, HasSubstr("finite")));
  });
}

// In stage 2 no rank has all gradients then, and the skipped step consumed those that it had.
TEST(ShardedGradScaler, AStepThatWasLeftOutUsedItsGradients) {
  for (const Wrapper wrapper : {Wrapper::kStage2, Wrapper::kFullySharded}) {
    OnEachRank(2, [&](Communicator& communicator) {
      Trained trained(wrapper, Where::kHost, communicator);
      auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
      ASSERT_OK(scaler);
      trained.UseScaler(scaler->get());
      EXPECT_FALSE(trained.Train(LossOf(communicator, trained) * kInfinity));
      (void)(*scaler)->Scale(torch::ones({}));
      EXPECT_THAT(trained.Step(), StatusIs(StatusCode::kFailedPrecondition,
                                           HasSubstr(wrapper == Wrapper::kStage2
                                                         ? "without a reduction"
                                                         : "without gradients of all ranks")));
    });
  }
}

TEST(ShardedGradScaler, RanksWhoseScalesDifferAreAnError) {
  WithStage2(3, [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    if (communicator.rank() == 2) {
      ASSERT_OK(scaler.Update(1024));
    }
    trained.Backward(LossOf(communicator, trained));
    EXPECT_THAT(trained.Step(), StatusIs(StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr("between 1024 and 65536"),
                                               HasSubstr("load the same state on all ranks"))));
  });
}

TEST(ShardedGradScaler, ARankThatIsGoneIsAnErrorOfTheOthers) {
  WithStage2(3, [](Communicator& communicator, Trained& trained, ShardedGradScaler&) {
    trained.Backward(LossOf(communicator, trained));
    if (communicator.rank() == 1) return communicator.Abort();
    EXPECT_FALSE(trained.Step().ok());
  });
}

TEST(ShardedGradScaler, OptionsOutOfTheirRangeAreAnError) {
  OnEachRank(1, [](Communicator& communicator) {
    const auto with = [&](const std::function<void(GradScalerOptions&)>& change) {
      GradScalerOptions options;
      change(options);
      return ShardedGradScaler::Create(communicator, options).status();
    };
    const auto refused = [](const char* option) {
      return StatusIs(StatusCode::kInvalidArgument, HasSubstr(option));
    };
    EXPECT_THAT(with([](auto& o) { o.init_scale = -1; }), refused("scale is -1"));
    EXPECT_THAT(with([](auto& o) { o.growth_factor = 1; }), refused("growth_factor is 1"));
    EXPECT_THAT(with([](auto& o) { o.backoff_factor = 1; }), refused("backoff_factor is 1"));
    EXPECT_THAT(with([](auto& o) { o.backoff_factor = std::nan(""); }), refused("backoff_factor"));
    EXPECT_THAT(with([](auto& o) { o.growth_interval = 0; }), refused("growth_interval is 0"));
  });
}

torch::serialize::InputArchive State(double scale, int64_t interval, int64_t tracker,
                                     double growth = 2) {
  torch::serialize::OutputArchive archive;
  archive.write("scale", torch::IValue(scale));
  archive.write("growth_factor", torch::IValue(growth));
  archive.write("backoff_factor", torch::IValue(0.5));
  archive.write("growth_interval", torch::IValue(interval));
  archive.write("_growth_tracker", torch::IValue(tracker));
  return ArchiveOf(TextOf(archive));
}

TEST(ShardedGradScaler, ItsStateGoesOnWithAnotherNumberOfRanks) {
  torch::serialize::OutputArchive archive;
  WithStage2(4, [&](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    trained.Train(LossOf(communicator, trained) * kInfinity);
    trained.Train(LossOf(communicator, trained));
    trained.Train(LossOf(communicator, trained));
    if (communicator.rank() == 0) scaler.SaveState(archive);
  });
  const std::string text = TextOf(archive);
  for (const int ranks : {1, 2, 3}) {
    WithStage2(
        ranks,
        [&](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
          torch::serialize::InputArchive saved = ArchiveOf(text);
          ASSERT_OK(scaler.LoadState(saved));
          EXPECT_EQ(scaler.scale(), 32768);
          EXPECT_EQ(scaler.growth_tracker(), 2);
          // The loaded state's growth interval is 3.
          ASSERT_TRUE(trained.Train(LossOf(communicator, trained)));
          EXPECT_EQ(scaler.scale(), 65536);
        },
        /*growth_interval=*/2000);
  }
}

TEST(ShardedGradScaler, AStateOfSomethingElseIsAnError) {
  OnEachRank(1, [](Communicator& communicator) {
    auto scaler = ShardedGradScaler::Create(communicator, ScalerOptions());
    ASSERT_OK(scaler);
    const auto refuses = [&](torch::serialize::InputArchive archive, const char* what) {
      EXPECT_THAT((*scaler)->LoadState(archive),
                  StatusIs(StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("not the state of a gradient scaler"), HasSubstr(what),
                                 HasSubstr("load what SaveState() wrote"))));
      EXPECT_EQ((*scaler)->scale(), 65536);
    };
    torch::serialize::OutputArchive empty, other;
    empty.write("bias", torch::ones({2}));
    refuses(ArchiveOf(TextOf(empty)), "it has no 'scale'");
    other.write("scale", torch::IValue("large"));
    refuses(ArchiveOf(TextOf(other)), "'scale' is of type String");
    refuses(State(std::nan(""), 2000, 0), "the scale is nan");
    refuses(State(0, 2000, 0), "the scale is 0");
    refuses(State(8, 0, 0), "growth_interval is 0");
    refuses(State(8, 2000, 2000), "'_growth_tracker' is 2000");
    refuses(State(8, 2000, -1), "'_growth_tracker' is -1");
    refuses(State(8, 2000, 0, 0.5), "growth_factor is 0.5");
    torch::serialize::InputArchive good = State(8, 2000, 5);
    EXPECT_OK((*scaler)->LoadState(good));
    EXPECT_EQ((*scaler)->scale(), 8);
  });
}

constexpr bool kNew = TORCH_VERSION_MAJOR >= 2;
constexpr bool kHasDevices = TORCH_VERSION_MAJOR > 2 ||
                             (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4);

torch::ScalarType TypeOfLinear(torch::Device device = torch::kCPU) {
  torch::nn::Linear linear(4, 3);
  linear->to(device);
  return linear(torch::ones({2, 4}).to(device)).scalar_type();
}

TEST(Autocast, ComputesIn16BitsWhileItLives) {
  EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
  {
    const Autocast outer(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(TypeOfLinear(), torch::kBFloat16);
    {
      const Autocast off(torch::kCPU, torch::kBFloat16, /*enabled=*/false);
      EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
    }
    EXPECT_EQ(TypeOfLinear(), torch::kBFloat16);
  }
  EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
}

TEST(Autocast, Float16OnTheHost) {
  if (!kNew) GTEST_SKIP() << "libtorch 1.13 has no kernels for it";
  const Autocast half(torch::kCPU, torch::kFloat16);
  EXPECT_EQ(TypeOfLinear(), torch::kFloat16);
}

TEST(Autocast, OnADevice) {
  pretend::Install(1);
  const torch::Device device = pretend::Device();
  ASSERT_EQ(HasAutocast(device.type()), kHasDevices);
  if (!kHasDevices) {
    EXPECT_THROW(Autocast(device.type(), torch::kFloat16), c10::Error);
    EXPECT_FALSE(CurrentAutocast(device.type()).enabled);
    return;
  }
  const Autocast half(device.type(), torch::kFloat16);
  EXPECT_EQ(TypeOfLinear(device), torch::kFloat16);
  EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
}

TEST(Autocast, ForgetsTheCopiesOfParametersAtItsEnd) {
  torch::nn::Linear linear(4, 3);
  const torch::Tensor ones = torch::ones({2, 4});
  const auto with_autocast = [&] {
    const Autocast half(torch::kCPU, torch::kBFloat16);
    return linear(ones).detach().to(torch::kFloat32);
  };
  const torch::Tensor before = with_autocast();
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : linear->parameters()) parameter.mul_(2);
  }
  EXPECT_TRUE(with_autocast().equal(before * 2));
}

TEST(Autocast, IsOfOneThreadAndCanBeHandedOn) {
  AutocastState seen;
  {
    const Autocast half(torch::kCPU, torch::kBFloat16);
    seen = CurrentAutocast(torch::kCPU);
    std::thread([&seen] {
      EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
      const Autocast as_there(torch::kCPU, seen);
      EXPECT_EQ(TypeOfLinear(), torch::kBFloat16);
    }).join();
  }
  EXPECT_TRUE(seen.enabled);
  EXPECT_EQ(seen.type, torch::kBFloat16);
  EXPECT_FALSE(CurrentAutocast(torch::kCPU).enabled);
}

TEST(Autocast, AnotherTypeIsAnError) {
  EXPECT_THROW(Autocast(torch::kCPU, torch::kInt32), c10::Error);
  EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
}

}  // namespace

}  // namespace cadre::nn
