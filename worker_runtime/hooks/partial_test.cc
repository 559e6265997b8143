#include "cadre/hooks/partial.h"

#include "base/status_matchers.h"
#include "cadre/hooks/fusion.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/hooks/hook_harness.h"

namespace cadre::hooks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// In reverse order and with a threshold of 20: {2}, {3, 1} and {0}.
const Shapes kShapes = {{9}, {15}, {4, 6}, {6}};
const std::vector<reduce::Bucket> kGroups = {{2}, {3, 1}, {0}};
constexpr size_t kThreshold = 20;

class Replica {
 public:
  explicit Replica(int rank) {
    for (size_t p = 0; p < kShapes.size(); ++p) {
      values_.emplace_back(CountOf(kShapes[p]));
      for (size_t i = 0; i < values_[p].size(); ++i) values_[p][i] = GradientValue(rank, 0, p, i);
    }
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> parameters;
    for (std::vector<float>& values : values_) {
      parameters.push_back({"p", {values.data(), values.size(), DataType::kFloat32}, {}});
    }
    return parameters;
  }
  // One step of gradient descent with this rank's own gradients.
  void Descend(int rank, int step, float rate) {
    for (size_t p = 0; p < values_.size(); ++p) {
      for (size_t i = 0; i < values_[p].size(); ++i) {
        values_[p][i] -= rate * GradientValue(rank, step, p, i);
      }
    }
  }
  std::vector<std::vector<float>>& values() { return values_; }

 private:
  std::vector<std::vector<float>> values_;
};

// Every rank's replica, by the formula.
class Reference {
 public:
  explicit Reference(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) replicas_.emplace_back(rank);
  }

  void Step(int step, float rate) {
    const int ranks = static_cast<int>(replicas_.size());
    for (int rank = 0; rank < ranks; ++rank) replicas_[rank].Descend(rank, step, rate);
    for (const size_t p : kGroups[(step - 1) % kGroups.size()]) {
      for (size_t i = 0; i < CountOf(kShapes[p]); ++i) {
        double sum = 0;
        for (Replica& replica : replicas_) sum += replica.values()[p][i];
        for (Replica& replica : replicas_) {
          replica.values()[p][i] = static_cast<float>(sum / ranks);
        }
      }
    }
  }
  Replica& replica(int rank) { return replicas_[rank]; }

 private:
  std::vector<Replica> replicas_;
};

void ExpectNear(Replica& ours, Replica& expected, int step) {
  for (size_t p = 0; p < kShapes.size(); ++p) {
    for (size_t i = 0; i < ours.values()[p].size(); ++i) {
      ASSERT_NEAR(ours.values()[p][i], expected.values()[p][i], 1e-5)
          << "step " << step << ", parameter " << p << ", element " << i;
    }
  }
}

TEST(PartialHook, SeveralSteps_IsTheFormula) {
  for (const int ranks : {1, 2, 3}) {
    WithRanks(ranks, [&](Communicator& communicator) {
      Reference reference(ranks);
      Replica mine(communicator.rank());
      auto hook = PartialHook::Create(mine.parameters(), kThreshold);
      ASSERT_OK(hook);
      ASSERT_EQ((*hook)->group_count(), 3u);
      for (int step = 1; step <= 8; ++step) {
        reference.Step(step, 0.1f);
        mine.Descend(communicator.rank(), step, 0.1f);
        ASSERT_OK((*hook)->AverageNextGroup(communicator, kHookTestTimeout));
        ExpectNear(mine, reference.replica(communicator.rank()), step);
      }
    });
  }
}

TEST(PartialHook, OnceRoundWithoutALearningRate_AllReplicasAreEqual) {
  constexpr int kRanks = 3;
  std::vector<std::vector<std::vector<float>>> after(kRanks), before(kRanks);
  WithRanks(kRanks, [&](Communicator& communicator) {
    Replica mine(communicator.rank());
    auto hook = PartialHook::Create(mine.parameters(), kThreshold);
    ASSERT_OK(hook);
    for (int step = 1; step <= 3; ++step) {
      before[communicator.rank()] = mine.values();
      mine.Descend(communicator.rank(), step, 0);
      ASSERT_OK((*hook)->AverageNextGroup(communicator, kHookTestTimeout));
    }
    after[communicator.rank()] = mine.values();
  });
  EXPECT_EQ(after[0], after[1]);
  EXPECT_EQ(after[0], after[2]);
  EXPECT_NE(before[0], before[1]) << "only the last group was missing";
}

TEST(PartialHook, AverageAll_LeavesTheTurnsAsTheyAre) {
  std::vector<std::vector<std::vector<float>>> after(2);
  WithRanks(2, [&](Communicator& communicator) {
    Replica mine(communicator.rank());
    auto hook = PartialHook::Create(mine.parameters(), kThreshold);
    ASSERT_OK(hook);
    ASSERT_OK((*hook)->AverageNextGroup(communicator, kHookTestTimeout));
    const auto state = (*hook)->SaveState();
    ASSERT_OK(state);
    ASSERT_OK((*hook)->AverageAll(communicator, kHookTestTimeout));
    EXPECT_EQ(*(*hook)->SaveState(), *state);
    after[communicator.rank()] = mine.values();
  });
  EXPECT_EQ(after[0], after[1]);
}

TEST(PartialHook, Start_GradientsStayThisRanksOwn) {
  WithRanks(2, [](Communicator& communicator) {
    Replica mine(communicator.rank());
    auto hook = PartialHook::Create(mine.parameters(), kThreshold);
    ASSERT_OK(hook);
    TestGradients gradients(kShapes, {{0, 1, 2, 3}});
    ASSERT_OK((*hook)->Layout(gradients.views()));
    gradients.Fill(communicator.rank(), 1);
    const auto before = gradients.GetAll();
    ASSERT_OK(ReduceAll(**hook, communicator, gradients));
    EXPECT_EQ(gradients.GetAll(), before);
    EXPECT_FALSE((*hook)->KeepsReplicasEqual());
    EXPECT_EQ((*hook)->bytes_given(), 0u);
    ASSERT_OK((*hook)->AverageNextGroup(communicator, kHookTestTimeout));
    EXPECT_EQ((*hook)->bytes_given(), 24u * 4);
  });
}

TEST(PartialHook, State_LoadedMidway_GoesOnWithTheNextGroup) {
  WithRanks(2, [](Communicator& communicator) {
    Reference reference(2);
    Replica mine(communicator.rank());
    std::string state;
    for (int step = 1; step <= 5; ++step) {
      // A new process after each step.
      auto hook = PartialHook::Create(mine.parameters(), kThreshold);
      ASSERT_OK(hook);
      if (step > 1) {
        ASSERT_OK((*hook)->LoadState(state));
      }
      reference.Step(step, 0.1f);
      mine.Descend(communicator.rank(), step, 0.1f);
      ASSERT_OK((*hook)->AverageNextGroup(communicator, kHookTestTimeout));
      ExpectNear(mine, reference.replica(communicator.rank()), step);
      state = *(*hook)->SaveState();
    }
    auto other = PartialHook::Create(mine.parameters(), 1000);
    ASSERT_OK(other);
    EXPECT_THAT((*other)->LoadState(state),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("has 3 groups")));
  });
}

TEST(PartialHook, Create_ParametersThatCannotBeAveraged_Refused) {
  EXPECT_THAT(PartialHook::Create({}), StatusIs(StatusCode::kInvalidArgument));
  int32_t value = 0;
  EXPECT_THAT(PartialHook::Create({{"steps", {&value, 1, DataType::kInt32}, {}}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'steps' is int32")));
}

TEST(PartialHook, Create_DifferentTypes_AreNotFused) {
  float a = 0;
  double b = 0;
  const auto hook = PartialHook::Create(
      {{"a", {&a, 1, DataType::kFloat32}, {}}, {"b", {&b, 1, DataType::kFloat64}, {}}});
  ASSERT_OK(hook);
  EXPECT_EQ((*hook)->group_count(), 2u);
}

TEST(FusionGroups, ClosesAGroupThatExceedsTheThreshold) {
  // 4 + 5 is not more than 9; with 1 it is.
  EXPECT_THAT(FusionGroups({4, 5, 1, 2}, {0, 1, 2, 3}, 9),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3)));
}

TEST(FusionGroups, LargeTensorsAreAloneAndDoNotCloseTheOpenGroup) {
  EXPECT_THAT(FusionGroups({1, 10, 2, 9}, {0, 1, 2, 3}, 9),
              ElementsAre(ElementsAre(1), ElementsAre(0, 2, 3)));
}

TEST(FusionGroups, FollowsTheOrder) {
  EXPECT_THAT(FusionGroups({1, 1, 1}, {2, 1, 0}, 1),
              ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
  EXPECT_THAT(FusionGroups({1, 0, 1}, {0, 1, 2}, 0),
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1)));
  EXPECT_THAT(FusionGroups({}, {}, 9), IsEmpty());
}

TEST(FusionGroups, TheThresholdIsSingas) { EXPECT_EQ(kFusionThreshold, 2097152u); }

}  // namespace

}  // namespace cadre::hooks
