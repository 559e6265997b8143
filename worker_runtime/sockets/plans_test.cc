// Executes the plans of all ranks together. Checks results, what stays unchanged, and how much each
// rank sends. Types and operations are tested by collective_suite.
#include "worker_runtime/sockets/plans.h"

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "worker_runtime/sockets/flow.h"
#include "worker_runtime/sockets/flow_rig.h"

namespace cadre::sockets {
namespace {

using ::testing::Each;

// The counts are small ones, one chunk, and several chunks; none divides evenly.
constexpr size_t kCounts[] = {1, 5, 40000, 700001};
constexpr int kSizes[] = {2, 3, 5};

size_t Sent(const Plan& plan) {
  size_t bytes = 0;
  for (const auto& pieces : plan.outgoing) {
    for (const Piece& piece : pieces) bytes += piece.bytes;
  }
  return bytes;
}

Buffer Of(std::vector<float>& values) { return {values.data(), values.size(), DataType::kFloat32}; }

class PlansTest : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  // Element i of rank r is r + 1 plus a small value that depends on i.
  std::vector<std::vector<float>> Elements(size_t count) const {
    std::vector<std::vector<float>> all(size(), std::vector<float>(count));
    for (int rank = 0; rank < size(); ++rank) {
      for (size_t i = 0; i < count; ++i) {
        all[rank][i] = static_cast<float>(rank + 1) + static_cast<float>(i % 64);
      }
    }
    return all;
  }
  float SumAt(size_t i) const {
    return static_cast<float>(size() * (size() + 1) / 2) +
           static_cast<float>(size()) * static_cast<float>(i % 64);
  }
  // Returns the number of bytes that each rank sends.
  std::vector<size_t> Run(const std::function<Plan(const Team&)>& plan_of, double factor = 1) {
    FlowRig rig(size());
    std::vector<size_t> sent;
    for (int rank = 0; rank < size(); ++rank) {
      Plan plan = plan_of({rank, size()});
      sent.push_back(Sent(plan));
      rig.Begin(rank, std::move(plan), {1, 1, factor});
    }
    rig.Finish();
    return sent;
  }
};

TEST_P(PlansTest, AllReduce) {
  for (const size_t count : kCounts) {
    auto values = Elements(count);
    const auto sent = Run([&](const Team& team) {
      return PlanAllReduce(team, Of(values[team.rank]), ReduceOp::kSum);
    });
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(values[0][i], SumAt(i)) << i << " of " << count;
    for (const auto& one : values) EXPECT_TRUE(one == values[0]);
    // As in a ring, a rank sends all elements except its own part, and then that part to all
    // others.
    const size_t bytes = count * sizeof(float);
    if (bytes * (size() - 1) <= kDirectBytes) continue;
    for (const size_t one : sent) EXPECT_LE(one, 2 * bytes * (size() - 1) / size() + 64);
  }
}

TEST_P(PlansTest, AllReduceOfMultiples) {
  for (const size_t count : kCounts) {
    auto values = Elements(count);
    Run(
        [&](const Team& team) {
          return PlanAllReduce(team, Of(values[team.rank]), ReduceOp::kSum);
        },
        2);
    for (const auto& one : values) {
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(one[i], 2 * SumAt(i)) << i << " of " << count;
    }
  }
}

TEST_P(PlansTest, ReduceChangesNothingButTheRoots) {
  for (const size_t count : kCounts) {
    for (const double factor : {1.0, 2.0}) {
      auto values = Elements(count);
      const auto before = values;
      const int root = size() - 1;
      const auto sent = Run(
          [&](const Team& team) {
            return PlanReduce(team, Of(values[team.rank]), ReduceOp::kSum, root);
          },
          factor);
      for (int rank = 0; rank < size(); ++rank) {
        if (rank != root) {
          EXPECT_TRUE(values[rank] == before[rank]);
        }
      }
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(values[root][i], factor * SumAt(i)) << i << " of " << count;
      }
      // No rank sends more bytes than its buffer has, and one part of those is a sum.
      for (const size_t one : sent) EXPECT_LE(one, count * sizeof(float) + 64);
    }
  }
}

TEST_P(PlansTest, ReduceScatterOfPartsOfAnySize) {
  std::vector<size_t> counts = {0, 70001, 3, 40000, 1};
  counts.resize(size());
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  for (const double factor : {1.0, 2.0}) {
    auto values = Elements(total);
    const auto before = values;
    std::vector<std::vector<float>> parts;
    for (const size_t count : counts) parts.emplace_back(count);
    const auto sent = Run(
        [&](const Team& team) {
          return PlanReduceScatter(team, Of(values[team.rank]), Of(parts[team.rank]), counts,
                                   ReduceOp::kSum);
        },
        factor);
    EXPECT_TRUE(values == before);
    size_t at = 0;
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(sent[rank], (total - counts[rank]) * sizeof(float));
      for (const float value : parts[rank]) ASSERT_EQ(value, factor * SumAt(at++)) << rank;
    }
  }
}

TEST_P(PlansTest, BroadcastSendsEveryByteOfTheRootOnce) {
  for (const size_t count : kCounts) {
    for (int root = 0; root < size(); ++root) {
      auto values = Elements(count);
      const std::vector<float> wanted = values[root];
      const auto sent =
          Run([&](const Team& team) { return PlanBroadcast(team, Of(values[team.rank]), root); });
      for (const auto& one : values) EXPECT_TRUE(one == wanted);
      if (count * sizeof(float) > kDirectBytes) {
        EXPECT_EQ(sent[root], count * sizeof(float));
      }
    }
  }
}

TEST_P(PlansTest, AllGatherOfPartsOfAnySize) {
  std::vector<size_t> counts = {2, 0, 70001, 1, 5};
  counts.resize(size());
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  std::vector<std::vector<float>> outputs(size(), std::vector<float>(total));
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < size(); ++rank) inputs.emplace_back(counts[rank], rank + 1);
  Run([&](const Team& team) {
    return PlanAllGather(team, Of(inputs[team.rank]), Of(outputs[team.rank]), counts);
  });
  std::vector<float> wanted;
  for (const auto& one : inputs) wanted.insert(wanted.end(), one.begin(), one.end());
  EXPECT_THAT(outputs, Each(wanted));
}

TEST_P(PlansTest, ABarrierNeedsEverybody) {
  FlowRig rig(size());
  for (int rank = 1; rank < size(); ++rank) {
    Flow& flow = rig.Begin(rank, PlanBarrier({rank, size()}));
    while (flow.Advance() == Flow::State::kMoved) {
    }
    EXPECT_EQ(flow.Advance(), Flow::State::kStuck);
  }
  rig.Begin(0, PlanBarrier({0, size()}));
  rig.Finish();
}

INSTANTIATE_TEST_SUITE_P(Sizes, PlansTest, ::testing::ValuesIn(kSizes));

Piece Of(std::string& text, int after = 0, int step = kNoStep) {
  return {&text[0], text.size(), after, step};
}

TEST(FlowTest, PiecesArriveInTheirOrder) {
  FlowRig rig(2);
  std::string first = "first", second = "second", one(5, ' '), two(6, ' ');
  Plan sends(2), receives(2);
  sends.outgoing[1] = {Of(first), {}, Of(second)};
  receives.incoming[0] = {Of(one), {}, Of(two)};
  rig.Begin(0, std::move(sends));
  rig.Begin(1, std::move(receives));
  rig.Finish();
  EXPECT_EQ(one + two, "firstsecond");
}

TEST(FlowTest, APieceWaitsForItsStep_AndStepsAreFinishedInOrder) {
  FlowRig rig(2);
  std::string question = "question", answer = "?", heard(8, ' '), answered(1, ' ');
  std::vector<int> finished;
  Plan asks(2), answers(2);
  asks.outgoing[1] = {Of(question)};
  asks.incoming[1] = {Of(answered, 0, 1)};
  asks.steps = 2;  // the first has no pieces to wait for
  answers.incoming[0] = {Of(heard, 0, 0)};
  answers.outgoing[0] = {Of(answer, /*after=*/1)};
  answers.steps = 1;
  answers.finish = [&](int, const std::vector<double>&) { answer[0] = heard[0]; };
  asks.finish = [&](int step, const std::vector<double>&) { finished.push_back(step); };
  Flow& answering = rig.Begin(1, std::move(answers));
  EXPECT_EQ(answering.Advance(), Flow::State::kMoved);  // its opening is sent
  EXPECT_EQ(answering.Advance(), Flow::State::kStuck);
  EXPECT_EQ(answering.awaited_peer(), 0);
  rig.Begin(0, std::move(asks));
  rig.Finish();
  EXPECT_EQ(answered, "q");
  EXPECT_EQ(finished, (std::vector<int>{0, 1}));
}

TEST(FlowTest, AStepLearnsTheFactorsOfThoseItGotSomethingFrom) {
  FlowRig rig(2);
  std::string text = "text", heard(4, ' ');
  std::vector<double> factors;
  Plan sends(2), receives(2);
  sends.outgoing[1] = {Of(text)};
  receives.incoming[0] = {Of(heard, 0, 0)};
  receives.steps = 1;
  receives.finish = [&](int, const std::vector<double>& all) { factors = all; };
  rig.Begin(0, std::move(sends), {1, 1, 0.5});
  rig.Begin(1, std::move(receives), {1, 1, 2});
  rig.Finish();
  EXPECT_EQ(factors, (std::vector<double>{0.5, 2}));
}

void ExchangeMuch(FlowRig& rig) {
  const size_t bytes = size_t{8} << 20;
  std::vector<std::string> given = {std::string(bytes, 'a'), std::string(bytes, 'b')};
  std::vector<std::string> heard(2, std::string(bytes, ' '));
  for (int rank = 0; rank < 2; ++rank) {
    Plan plan(2);
    plan.outgoing[1 - rank] = {Of(given[rank])};
    plan.incoming[1 - rank] = {Of(heard[rank])};
    rig.Begin(rank, std::move(plan));
  }
  rig.Finish();
  EXPECT_TRUE(heard[0] == given[1] && heard[1] == given[0]);
}

TEST(FlowTest, MoreThanASocketHoldsGoesBothWaysAtOnce) {
  FlowRig rig(2);
  ExchangeMuch(rig);
}

TEST(FlowTest, EncryptedItDoesSoToo_AndTheNextFlowFindsItsOwn) {
  FlowRig rig(2, /*is_encrypted=*/true);
  ExchangeMuch(rig);
  ExchangeMuch(rig);
}

TEST(FlowTest, AnotherCallIsNoticed) {
  FlowRig rig(2);
  std::string text = "text", heard(4, ' ');
  Plan sends(2), receives(2);
  sends.outgoing[1] = {Of(text)};
  receives.incoming[0] = {Of(heard)};
  EXPECT_EQ(rig.Begin(0, std::move(sends), {7, 1}).Advance(), Flow::State::kDone);
  Flow& receiving = rig.Begin(1, std::move(receives), {7, 2});
  EXPECT_EQ(receiving.Advance(), Flow::State::kDiffers);
  EXPECT_EQ(receiving.lost_peer(), 0);
  EXPECT_EQ(receiving.Advance(), Flow::State::kDiffers);
}

TEST(FlowTest, AnEndInTheMiddleIsNoticed) {
  FlowRig rig(2);
  std::string text = "text", heard(5, ' ');
  Plan sends(2), receives(2);
  sends.outgoing[1] = {Of(text)};
  receives.incoming[0] = {Of(heard)};
  rig.Begin(0, std::move(sends)).Advance();
  rig.HangUp(0);
  Flow& receiving = rig.Begin(1, std::move(receives));
  EXPECT_EQ(receiving.Advance(), Flow::State::kMoved);
  receiving.Await(0);
  EXPECT_EQ(receiving.Advance(), Flow::State::kLost);
  EXPECT_EQ(receiving.lost_peer(), 0);
  EXPECT_NE(receiving.lost_reason(), "");
}

}  // namespace

}  // namespace cadre::sockets
