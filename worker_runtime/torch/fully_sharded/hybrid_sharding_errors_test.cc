// Communicators of hybrid sharding that cannot be, and ranks that fail in it.
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "cadre/torch/hybrid_sharding.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Model = FullySharded<UnitNet>;

TEST(SplitByNode, GivesBothGroups) {
  OnEachRank(6, [](Communicator& communicator) {
    const auto groups = SplitByNode(communicator, 3, kLong);
    ASSERT_OK(groups);
    EXPECT_EQ(groups->shards->size(), 3);
    EXPECT_EQ(groups->shards->rank(), communicator.rank() % 3);
    EXPECT_EQ(groups->replicas->size(), 2);
    EXPECT_EQ(groups->replicas->rank(), communicator.rank() / 3);
    EXPECT_OK(CheckGroupsFit(*groups->shards, groups->replicas.get(), kLong));
  });
}

TEST(SplitByNode, NodesOfDifferentSizes) {
  OnEachRank(4, [](Communicator& communicator) {
    EXPECT_THAT(
        SplitByNode(communicator, communicator.rank() < 3 ? 3 : 1, kLong).status(),
        StatusIs(StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("rank 3 is one of 1 on its node"), HasSubstr("rank 0 of 3"))));
  });
}

TEST(SplitByNode, ASizeThatDoesNotDivideTheWorld) {
  OnEachRank(4, [](Communicator& communicator) {
    for (const int size : {3, 0, -1, 8}) {
      EXPECT_THAT(SplitByNode(communicator, size, kLong).status(),
                  StatusIs(StatusCode::kInvalidArgument,
                           HasSubstr(std::to_string(size) + " ranks on each node of 4")));
    }
  });
}

// Both communicators as colors, of the ranks in their order.
void ExpectNoFit(const std::vector<int>& nodes, const std::vector<int>& parts,
                 const std::vector<std::string>& texts) {
  OnEachRank(static_cast<int>(nodes.size()), [&](Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    const auto shards = communicator.Split(nodes[rank], communicator.rank());
    ASSERT_OK(shards);
    const auto replicas = communicator.Split(parts[rank], communicator.rank());
    ASSERT_OK(replicas);
    FullyShardedOptions options = UnitOptions();
    options.replicas = replicas->get();
    const auto net = std::make_shared<UnitNet>();
    EXPECT_THAT(Model::Create(net, net->units(), **shards, options).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("do not fit together"), HasSubstr(texts[rank]))));
  });
}

TEST(HybridShardingErrors, ReplicasOfDifferentSizes) {
  ExpectNoFit({0, 0, 0, 1}, {0, 1, 2, 0},
              {"rank 0 of 3 with parts is in replica 0 of 2, and rank 1 with parts in 0 of 1",
               "rank 1 of 3 with parts is in replica 0 of 1, and rank 0 with parts in 0 of 2",
               "rank 2 of 3 with parts is in replica 0 of 1, and rank 0 with parts in 0 of 2",
               "rank 0 of 1 with parts is in replica 1 of 2, and replica 0's rank there is 0 of 3 "
               "with parts"});
}

// The part of another rank.
TEST(HybridShardingErrors, ReplicasThatAreCrossed) {
  ExpectNoFit(
      {0, 0, 1, 1}, {0, 1, 1, 0},
      {"rank 0 of 2 with parts is in replica 0 of 2, and replica 1's rank there is 1 of 2",
       "rank 1 of 2 with parts is in replica 0 of 2, and replica 1's rank there is 0 of 2",
       "rank 0 of 2 with parts is in replica 1 of 2, and replica 0's rank there is 1 of 2",
       "rank 1 of 2 with parts is in replica 1 of 2, and replica 0's rank there is 0 of 2"});
}

TEST(HybridShardingErrors, ARankWithoutReplicas) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto alone = communicator.Split(communicator.rank(), 0);
    ASSERT_OK(alone);
    FullyShardedOptions options = UnitOptions();
    const bool has = communicator.rank() == 1;
    if (has) options.replicas = alone->get();
    const auto net = std::make_shared<UnitNet>();
    EXPECT_THAT(Model::Create(net, net->units(), communicator, options).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(has ? "in replica 0 of 1" : "in replica none"),
                               HasSubstr(has ? "with parts in none" : "with parts in 0 of 1"))));
  });
}

TEST(HybridShardingErrors, ReplicasThatDiffer) {
  OnEachRank(4, [](Communicator& communicator) {
    const ModelRanks among(communicator, 2, UnitOptions());
    const auto net = std::make_shared<UnitNet>(1, communicator.rank() < 2 ? 10 : 11);
    EXPECT_THAT(Model::Create(net, net->units(), among.shards(), among.options).status(),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("the replicas, whose ranks these are, differ"),
                               HasSubstr("'stem.weight'"), HasSubstr("on rank 1"))));
  });
}

// Whoever has another part than it, in another replica, hears of it as well.
TEST(HybridShardingErrors, ARankThatIsGone) {
  for (const Where where : {Where::kHost, Where::kThroughHost, Where::kOnDevice}) {
    OnEachRank(4, [where](Communicator& communicator) {
      UnitRank rank(where, communicator, 2);
      const torch::Tensor loss = rank.Loss();
      if (communicator.rank() == 3) {
        rank.among().shards().Abort();
        rank.among().groups.replicas->Abort();
        return;
      }
      rank.ExpectToHear(loss);
    });
  }
}

// A pass that nobody finished, in any of its stages.
TEST(HybridShardingErrors, AModelThatGoesBeforeFinish) {
  for (const Where where : {Where::kHost, Where::kThroughHost, Where::kOnDevice}) {
    OnEachRank(4, [where](Communicator& communicator) {
      UnitRank rank(where, communicator, 2);
      rank.Loss().backward();
      rank.LoseModel();
      if (where == Where::kOnDevice) return;
      // What was under way refers to the model's memory.
      EXPECT_FALSE(rank.among().shards().Barrier()->Wait(kLong).ok());
      EXPECT_FALSE(rank.among().groups.replicas->Barrier()->Wait(kLong).ok());
    });
  }
}

}  // namespace
}  // namespace cadre::nn
