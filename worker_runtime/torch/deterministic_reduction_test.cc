#include "cadre/torch/deterministic_reduction.h"

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/torch/sharded_training_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::HasSubstr;

constexpr int kParts = 24;
constexpr int kRowsOfAPart = 5;

// The same for everybody, whichever rank has the part.
torch::Tensor Images(int step, int part, torch::Device device) {
  const torch::Tensor numbers = torch::arange(kRowsOfAPart * 12) + 31 * part + 1009 * step;
  return (numbers * 0.37).sin().view({kRowsOfAPart, 12}).to(device);
}

struct Training {
  Kind optimizer = Kind::kAdam;
  Where where = Where::kHost;
  torch::ScalarType type = torch::kFloat32;
  int parts = kParts;
};

// A model's parameters, and it and its optimizer as they are saved.
struct Trained {
  std::vector<torch::Tensor> parameters;
  std::string net, optimizer;
};

// Goes on from `from`, or begins; gives what rank 0 has at the end, when all have the same.
Trained Train(int ranks, int first_step, int steps, const Training& training,
              const Trained& from = {}) {
  RanksValues values(static_cast<size_t>(ranks));
  Trained trained;
  OnEachRank(ranks, [&](Communicator& communicator) {
    const torch::Device device = DeviceFor(training.where, communicator);
    // Seeds that differ: all begin with rank 0's.
    ShardedNet net(communicator.rank() + 1);
    net.to(device, training.type);
    const auto optimizer = MakeOptimizer(training.optimizer, net.parameters());
    if (!from.net.empty()) {
      auto net_archive = ArchiveOf(from.net), optimizer_archive = ArchiveOf(from.optimizer);
      net.load(net_archive);
      optimizer->load(optimizer_archive);
    }
    DeterministicReductionOptions options;
    options.parts = training.parts;
    options.timeout = kLong;
    auto reduction = DeterministicReduction::Create(net, communicator, options);
    ASSERT_OK(reduction);
    for (int step = first_step; step < first_step + steps; ++step) {
      for (int part = (*reduction)->parts().begin; part < (*reduction)->parts().end; ++part) {
        net.forward(Images(step, part, device).to(training.type)).pow(2).mean().backward();
        ASSERT_OK((*reduction)->Take());
      }
      ASSERT_OK((*reduction)->Finish());
      optimizer->step();
      optimizer->zero_grad();
    }
    values[static_cast<size_t>(communicator.rank())] = ParametersOf(net);
    if (communicator.rank() != 0) return;
    torch::serialize::OutputArchive net_archive, optimizer_archive;
    net.save(net_archive);
    optimizer->save(optimizer_archive);
    trained = {ParametersOf(net), TextOf(net_archive), TextOf(optimizer_archive)};
  });
  for (const auto& one : values) ExpectSame(one, values[0]);
  return trained;
}

TEST(DeterministicReduction, AHundredStepsGiveTheSameBitsOnAnyNumberOfRanks) {
  for (const Kind kind : {Kind::kSgd, Kind::kAdam}) {
    const auto expected = Train(1, 0, 100, {kind}).parameters;
    for (const int ranks : {2, 3, 4, 5, 8}) {
      SCOPED_TRACE(ranks);
      ExpectSame(Train(ranks, 0, 100, {kind}).parameters, expected);
    }
  }
}

TEST(DeterministicReduction, AJobThatShrinksAndGrowsHasTheSameBits) {
  const Training adam;
  const auto expected = Train(1, 0, 100, adam).parameters;
  Trained job = Train(4, 0, 30, adam);
  job = Train(3, 30, 40, adam, job);
  job = Train(4, 70, 30, adam, job);
  ExpectSame(job.parameters, expected);
}

TEST(DeterministicReduction, AnotherNumberOfPartsThanAPowerOfTwo) {
  const Training seven = {Kind::kSgd, Where::kHost, torch::kFloat32, 7};
  const auto expected = Train(1, 0, 10, seven).parameters;
  for (const int ranks : {2, 3, 7}) ExpectSame(Train(ranks, 0, 10, seven).parameters, expected);
}

TEST(DeterministicReduction, OnDevices) {
  const Training device = {Kind::kSgd, Where::kThroughHost};
  ExpectSame(Train(3, 0, 10, device).parameters, Train(1, 0, 10, device).parameters);
}

TEST(DeterministicReduction, SixteenBits) {
  const Training half = {Kind::kSgd, Where::kHost, torch::kBFloat16};
  ExpectSame(Train(4, 0, 10, half).parameters, Train(1, 0, 10, half).parameters);
}

TEST(DeterministicReduction, IsTheGradientOfTheWholeBatch) {
  OnEachRank(2, [](Communicator& communicator) {
    ShardedNet net, whole;
    auto reduction = DeterministicReduction::Create(net, communicator, {4});
    ASSERT_OK(reduction);
    const PartRange mine = (*reduction)->parts();
    std::vector<torch::Tensor> batch;
    for (int part = 0; part < 4; ++part) batch.push_back(Images(0, part, torch::kCPU));
    for (int part = mine.begin; part < mine.end; ++part) {
      net.forward(batch[static_cast<size_t>(part)]).pow(2).mean().backward();
      ASSERT_OK((*reduction)->Take());
    }
    ASSERT_OK((*reduction)->Finish());
    whole.forward(torch::cat(batch)).pow(2).mean().backward();
    const auto ours = net.parameters(), theirs = whole.parameters();
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(ours[i].grad().allclose(theirs[i].grad(), 1e-5, 1e-7)) << i;
    }
  });
}

TEST(DeterministicReduction, WhatOnePartAloneUsesHasAGradient_AndWhatNoneUsesHasNone) {
  OnEachRank(2, [](Communicator& communicator) {
    ShardedNet net;
    auto reduction = DeterministicReduction::Create(net, communicator, {2});
    ASSERT_OK(reduction);
    const size_t skipped = communicator.rank() == 0 ? 1 : 2;
    net.forward(Images(0, communicator.rank(), torch::kCPU), skipped).sum().backward();
    ASSERT_OK((*reduction)->Take());
    ASSERT_OK((*reduction)->Finish());
    const size_t layers = net.layers.size();
    EXPECT_TRUE(net.layers[layers - 2]->weight.grad().defined());
    EXPECT_FALSE(net.layers[layers - 1]->weight.grad().defined());
  });
}

TEST(DeterministicReduction, PartsThatAreMissingOrTooMany) {
  OnEachRank(2, [](Communicator& communicator) {
    ShardedNet net;
    auto reduction = DeterministicReduction::Create(net, communicator, {2});
    ASSERT_OK(reduction);
    EXPECT_EQ((*reduction)->Finish().code(), StatusCode::kFailedPrecondition);
    ASSERT_OK((*reduction)->Take());
    EXPECT_THAT((*reduction)->Take().message(), HasSubstr("has given all of them"));
  });
}

TEST(DeterministicReduction, OptionsThatCannotBe) {
  OnEachRank(2, [](Communicator& communicator) {
    ShardedNet net;
    EXPECT_THAT(DeterministicReduction::Create(net, communicator, {1}).status().message(),
                HasSubstr("1 parts are not enough for 2 ranks"));
    EXPECT_THAT(DeterministicReduction::Create(net, communicator, {2 + communicator.rank()})
                    .status()
                    .message(),
                HasSubstr("rank 1 cuts the batch into 3 parts, and rank 0 into 2"));
    ShardedNet other(1, {12, 24, 8 + communicator.rank(), 1});
    EXPECT_THAT(DeterministicReduction::Create(other, communicator, {2}).status().message(),
                HasSubstr("layer1.weight"));
  });
}

}  // namespace
}  // namespace cadre::nn
