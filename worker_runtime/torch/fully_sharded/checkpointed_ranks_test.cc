// Checkpointed within the wrappers: the gradients of a backward pass within the backward pass are
// averaged as all others are.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/checkpointed.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"

namespace cadre::nn {
namespace {

// Where it is: nowhere; around the whole of a block, which is a unit; around two of them; in it,
// around what follows the inner unit; around all, one within the other.
enum class Place { kNone, kUnit, kPair, kInside, kNested };

struct Block : torch::nn::Module {
  explicit Block(int width) {
    inner = register_module("inner", torch::nn::Linear(width, 2 * width + 1));
    outer = register_module("outer", torch::nn::Linear(2 * width + 1, width));
  }
  torch::Tensor forward(const torch::Tensor& x, bool checkpointed) {
    const auto rest = [this](const torch::Tensor& y) { return outer(torch::tanh(y)); };
    const torch::Tensor y = CallUnit(inner, x);
    return x + (checkpointed ? Checkpointed(rest, y) : rest(y));
  }
  torch::nn::Linear inner{nullptr}, outer{nullptr};
};

struct Net : torch::nn::Module {
  Net(int seed, Place place) : place(place) {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>(12)));
    }
    head = register_module("head", torch::nn::Linear(12, 3));
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(0.2 *
                      (torch::arange(parameter.numel()) * 0.7 + seed).sin().view_as(parameter));
    }
  }
  // Without the first `skipped` blocks. The first one's input requires no gradient.
  torch::Tensor forward(torch::Tensor x, size_t skipped = 0) {
    const bool inside = place == Place::kInside;
    const auto pair = [this](size_t i) {
      return [this, i](const torch::Tensor& y) {
        if (place == Place::kNested) {
          return Checkpointed(blocks[i + 1], Checkpointed(blocks[i], y, false), false);
        }
        return CallUnit(blocks[i + 1], CallUnit(blocks[i], y, false), false);
      };
    };
    for (size_t i = skipped; i < blocks.size(); ++i) {
      if (place == Place::kPair || place == Place::kNested) {
        x = Checkpointed(pair(i++), x);
      } else {
        x = place == Place::kUnit ? Checkpointed(blocks[i], x, false)
                                  : CallUnit(blocks[i], x, inside);
      }
    }
    // The backward pass begins with an inner one.
    const bool with_head = place == Place::kUnit || place == Place::kNested;
    return torch::tanh(with_head ? Checkpointed(head, x) : head(x)).sum(1);
  }
  std::vector<std::string> units() const {
    return {"block0", "block0.inner", "block1", "block2", "block3"};
  }
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::Linear head{nullptr};
  const Place place;
};

enum class Wrapper { kDataParallel, kStage2, kFullySharded };

class CheckpointedRanks : public ::testing::TestWithParam<std::tuple<Where, Wrapper>> {
 protected:
  static Where where() { return std::get<0>(GetParam()); }
  static Wrapper wrapper() { return std::get<1>(GetParam()); }

  static torch::Tensor Input(const Communicator& communicator, int step) {
    return InputFor(communicator.rank(), step, DeviceFor(where(), communicator));
  }
  template <typename Model>
  static void OnePass(Communicator& communicator, Model& model, int step) {
    // Not all blocks are used in each step.
    const size_t skipped = step % 2 == 0 ? 0 : 2;
    model.forward(Input(communicator, step), skipped).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  }

  static void TrainFullySharded(Communicator& communicator, const std::shared_ptr<Net>& net,
                                int steps, size_t* most) {
    auto model = FullySharded<Net>::Create(net, net->units(), communicator, UnitOptions(where()));
    ASSERT_OK(model);
    const auto optimizer = MakeOptimizer(Kind::kAdam, (*model)->shards());
    for (int step = 0; step < steps; ++step) {
      (*model)->ZeroGrad();
      OnePass(communicator, **model, step);
      ASSERT_OK((*model)->Step(*optimizer));
    }
    *most = (*model)->most_gathered_bytes();
    EXPECT_EQ((*model)->gathered_bytes(), 0);
    auto full = FullySharded<Net>::FullParameters::Gather(**model, /*keep=*/false);
    ASSERT_OK(full);
    values_of(communicator) = ParametersOf(*net);
  }

  static void TrainOthers(Communicator& communicator, const std::shared_ptr<Net>& net, int steps) {
    DataParallelOptions options = SmallBuckets();
    options.connect_device = ConnectFor(where());
    const auto plain = MakeOptimizer(Kind::kAdam, net->parameters());
    std::unique_ptr<ShardedOptimizer> optimizer;
    std::unique_ptr<DataParallel<Net>> model;
    if (wrapper() == Wrapper::kStage2) {
      optimizer = *ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
      model = *ShardedDataParallel<Net>::Create(net, *optimizer, options);
    } else {
      model = *DataParallel<Net>::Create(net, communicator, options);
    }
    for (int step = 0; step < steps; ++step) {
      model->ZeroGrad();
      OnePass(communicator, *model, step);
      if (optimizer != nullptr) {
        ASSERT_OK(optimizer->Step());
      } else {
        plain->step();
      }
    }
    values_of(communicator) = ParametersOf(*net);
  }

  // Each rank's parameters after some steps.
  static RanksValues Train(int ranks, Place place, size_t* most, int steps = 4) {
    values_.assign(static_cast<size_t>(ranks), {});
    std::vector<size_t> each(static_cast<size_t>(ranks), 0);
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = std::make_shared<Net>(1 + communicator.rank(), place);
      net->to(DeviceFor(where(), communicator));
      if (wrapper() == Wrapper::kFullySharded) {
        TrainFullySharded(communicator, net, steps,
                          &each[static_cast<size_t>(communicator.rank())]);
      } else {
        TrainOthers(communicator, net, steps);
      }
    });
    *most = each[0];
    return values_;
  }

 private:
  static std::vector<torch::Tensor>& values_of(const Communicator& communicator) {
    return values_[static_cast<size_t>(communicator.rank())];
  }
  static RanksValues values_;
};

RanksValues CheckpointedRanks::values_;

std::string NameOfRanks(const ::testing::TestParamInfo<std::tuple<Where, Wrapper>>& info) {
  const char* const wrappers[] = {"DataParallel", "Stage2", "FullySharded"};
  return NameOfWay(std::get<0>(info.param)) + wrappers[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(Each, CheckpointedRanks,
                         ::testing::Combine(EachWay(), ::testing::Values(Wrapper::kDataParallel,
                                                                         Wrapper::kStage2,
                                                                         Wrapper::kFullySharded)),
                         NameOfRanks);

TEST_P(CheckpointedRanks, TrainsAsWithout) {
  for (const int ranks : {1, 2, 3, 4}) {
    size_t most = 0, most_without = 0;
    const RanksValues without = Train(ranks, Place::kNone, &most_without);
    for (const Place place : {Place::kUnit, Place::kPair, Place::kInside, Place::kNested}) {
      SCOPED_TRACE("place " + std::to_string(static_cast<int>(place)));
      ExpectClose(Train(ranks, place, &most), without, /*same_bits=*/true);
      // Those that are in one Checkpointed are there together.
      if (place == Place::kUnit || place == Place::kInside) {
        EXPECT_LE(most, most_without);
      }
    }
  }
}

}  // namespace
}  // namespace cadre::nn
