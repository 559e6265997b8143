// A sharded optimizer's state that comes together on one rank and is loaded again.
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/sharded_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/sharded_training_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Model = DataParallel<ShardedNet>;

class ShardedState : public ShardedTraining {};

INSTANTIATE_TEST_SUITE_P(Each, ShardedState, EachWayAndKind(), NameOf);

// Three ranks' state goes on with two, and alone; and as one that was never sharded.
TEST_P(ShardedState, GoesOnWithAnyNumberOfRanks) {
  const auto step_with = [](Model& model, ShardedOptimizer& optimizer, int step) {
    const torch::Device device = DeviceFor(where(), optimizer.communicator());
    optimizer.ZeroGrad();
    // The same on all ranks, so that their number changes nothing.
    model.forward(InputFor(0, step, device)).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
    ASSERT_OK(optimizer.Step());
  };
  std::string saved;
  std::vector<torch::Tensor> middle, expected;
  const auto run = [&](int ranks, int from, int to) {
    std::vector<torch::Tensor> values;
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = MakeNet(communicator);
      if (from > 0) {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < middle.size(); ++i) net->parameters()[i].copy_(middle[i]);
      }
      auto model = Model::Create(net, communicator, Options());
      ASSERT_OK(model);
      const auto plain = MakeOptimizer(kind(), net->parameters());
      auto optimizer =
          ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
      ASSERT_OK(optimizer);
      if (from > 0) {
        auto archive = ArchiveOf(saved);
        ASSERT_OK((*optimizer)->LoadState(archive));
      }
      const int recipient = ranks - 1;
      for (int step = from; step < to; ++step) {
        step_with(**model, **optimizer, step);
        if (step != 4) continue;
        torch::serialize::OutputArchive archive;
        const size_t before = (*optimizer)->state_bytes();
        ASSERT_OK((*optimizer)->SaveState(archive, recipient));
        EXPECT_EQ((*optimizer)->state_bytes(), before);
        if (communicator.rank() != recipient) continue;
        saved = TextOf(archive);
        middle = ParametersOf(*net);
      }
      if (communicator.rank() == 0) values = ParametersOf(*net);
    });
    return values;
  };
  expected = run(3, 0, 10);
  for (const int ranks : {1, 2, 3, 4}) ExpectClose(run(ranks, 5, 10), expected);
  // libtorch's own load() takes it, too.
  ShardedNet alone;
  const auto plain = MakeOptimizer(kind(), alone.parameters());
  auto archive = ArchiveOf(saved);
  plain->load(archive);
  EXPECT_EQ(plain->state().size(), alone.parameters().size());
}

struct Renamed : torch::nn::Module {
  Renamed() { other = register_module("other", torch::nn::Linear(12, 24)); }
  torch::nn::Linear other{nullptr};
};

// The state of a net's optimizer, as one rank alone saves it.
template <typename Net>
std::string SavedState(Net& net, Kind kind) {
  std::string saved;
  OnEachRank(1, [&](Communicator& communicator) {
    const auto plain = MakeOptimizer(kind, net.parameters());
    for (torch::Tensor& parameter : net.parameters()) {
      parameter.mutable_grad() = torch::ones_like(parameter);
    }
    auto optimizer = ShardedOptimizer::Create(net, *plain, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    ASSERT_OK((*optimizer)->Step());
    torch::serialize::OutputArchive archive;
    ASSERT_OK((*optimizer)->SaveState(archive));
    saved = TextOf(archive);
  });
  return saved;
}

TEST(ShardedStates, AStateOfAnotherModelIsAnErrorAndChangesNothing) {
  Renamed renamed;
  ShardedNet same;
  const std::string states[] = {SavedState(renamed, Kind::kAdam), SavedState(same, Kind::kSgd)};
  // Of an optimizer that was never sharded there are no names.
  std::vector<torch::Tensor> others;
  for (const torch::Tensor& parameter : same.parameters()) {
    others.push_back(torch::ones({parameter.numel(), 2}).set_requires_grad(true));
    others.back().mutable_grad() = torch::ones_like(others.back());
  }
  const auto plain_state = [](const std::vector<torch::Tensor>& parameters) {
    const auto plain = MakeOptimizer(Kind::kAdam, parameters);
    plain->step();
    torch::serialize::OutputArchive archive;
    plain->save(archive);
    return TextOf(archive);
  };
  const std::string other_shapes = plain_state(others);
  const std::string fewer = plain_state({others[0]});
  OnEachRank(2, [&](Communicator& communicator) {
    ShardedNet net;
    const auto plain = MakeOptimizer(Kind::kAdam, net.parameters());
    auto optimizer = ShardedOptimizer::Create(net, *plain, communicator, OptimizerOptions());
    ASSERT_OK(optimizer);
    net.forward(InputFor(0, 0, torch::kCPU)).sum().backward();
    ASSERT_OK((*optimizer)->Step());
    const size_t before = (*optimizer)->state_bytes();
    const std::string rank = "rank " + std::to_string(communicator.rank()) + ": ";
    const auto load = [&](const std::string& state) {
      auto archive = ArchiveOf(state);
      return (*optimizer)->LoadState(archive);
    };
    EXPECT_THAT(load(states[0]), StatusIs(StatusCode::kInvalidArgument,
                                          AllOf(HasSubstr(rank), HasSubstr("'other.weight' there"),
                                                HasSubstr("'layer0.weight' in this optimizer"))));
    EXPECT_THAT(load(states[1]),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("is one of torch::optim::SGD")));
    EXPECT_THAT(load(other_shapes), StatusIs(StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr(rank + "the state is of another"),
                                                   HasSubstr("parameter 'layer0.weight'"))));
    EXPECT_THAT(load(fewer), StatusIs(StatusCode::kInvalidArgument, HasSubstr(rank)));
    EXPECT_EQ((*optimizer)->state_bytes(), before);
    EXPECT_OK((*optimizer)->Step());
  });
}

}  // namespace
}  // namespace cadre::nn
