// What ShardedGradScaler refuses, and its state.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "cadre/torch/sharded_grad_scaler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/mixed_precision/scaled_training_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
                         AllOf(HasSubstr("rank "), HasSubstr("Unscale() twice"),
                               HasSubstr("call Update() at the end"))));
    EXPECT_THAT(scaler.Step(trained.sharded()), StatusIs(StatusCode::kFailedPrecondition));
  });
}

TEST(ShardedGradScaler, UnscalingAfterTheStepIsAnError) {
  WithStage2(2, [](Communicator& communicator, Trained& trained, ShardedGradScaler& scaler) {
    trained.Backward(LossOf(communicator, trained));
    ASSERT_OK(trained.Step());
    EXPECT_THAT(scaler.Unscale(trained.sharded()),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("Unscale() after Step()")));
  });
}

TEST(ShardedGradScaler, SteppingTwiceIsAnError) {
  WithStage2(2, [](Communicator& communicator, Trained& trained, ShardedGradScaler&) {
    trained.Backward(LossOf(communicator, trained));
    ASSERT_OK(trained.Step());
    EXPECT_THAT(trained.Step(), StatusIs(StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr("Step() twice"), HasSubstr("Update()"))));
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
    EXPECT_THAT(scaler.Update(),
                StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("Update() without a Step()"), HasSubstr("call Step()"))));
    // That is no reason to end.
    EXPECT_TRUE(trained.Train(LossOf(communicator, trained)));
    EXPECT_THAT(scaler.Update(), StatusIs(StatusCode::kFailedPrecondition));
    EXPECT_THAT(scaler.Update(0), StatusIs(StatusCode::kInvalidArgument));
    EXPECT_THAT(scaler.Update(std::nan("")), StatusIs(StatusCode::kInvalidArgument));
    EXPECT_THAT(scaler.Update(1e39), StatusIs(StatusCode::kInvalidArgument, HasSubstr("finite")));
  });
}

// Stage 2 has no gradients of all ranks there, and the step that was left out used those it had.
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
          // The interval of the state is 3.
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

}  // namespace
}  // namespace cadre::nn
