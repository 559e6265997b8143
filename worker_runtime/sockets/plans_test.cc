// The plans of all ranks, carried out together: results, what stays as it is, and how much each
// rank sends. Types and operations are collective_suite's.
#include "worker_runtime/sockets/plans.h"

#include <functional>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "worker_runtime/sockets/flow_rig.h"

namespace cadre::sockets {
namespace {

using ::testing::Each;

// Few, one chunk, and several; none divides evenly.
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
  // Element i of rank r is r + 1 and a little that depends on i.
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
  // Bytes that each rank sends.
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
    // As a ring does: all elements but this rank's part, and then that part to all.
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
      // Nobody sends more than all it has, a part of which is a sum.
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

}  // namespace
}  // namespace cadre::sockets
