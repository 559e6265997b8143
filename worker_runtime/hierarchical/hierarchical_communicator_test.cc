#include "worker_runtime/hierarchical/hierarchical_communicator.h"

#include <chrono>
#include <cstdint>
#include <functional>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::hierarchical {
// What all backends have in common is in //worker_runtime/testing:collectives_test.

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
constexpr size_t kMoreThanAnyMachineHas = size_t{1} << 50;

// Two ranks on each of two nodes.
void WithRanks(const std::function<void(Communicator&, int node)>& body) {
  testing::InProcessWorkers workers(4, 2);
  workers.Run([&](Worker& worker) {
    auto communicator = ConnectHierarchical(worker, {"nodes", kLong});
    ASSERT_OK(communicator);
    body(**communicator, worker.place().node_rank);
  });
}

// Fault (collective): One of several nodes has no shared memory left for gradient buffers -> Every
// rank gets `RESOURCE_EXHAUSTED`, those on that node with the number of bytes, and the communicator
// goes on
TEST(HierarchicalCommunicatorTest, ANodeWithoutMemoryIsHeardOfOnEveryRank_AndAllGoOn) {
  WithRanks([](Communicator& communicator, int node) {
    EXPECT_THAT(communicator.AllocateBuffer(node == 1 ? kMoreThanAnyMachineHas : 8),
                StatusIs(StatusCode::kResourceExhausted,
                         HasSubstr(node == 1 ? "within node 1" : "another node")));
    int64_t value = communicator.rank();
    EXPECT_OK(communicator.AllReduce({&value, 1, DataType::kInt64}, ReduceOp::kSum)->Wait(kLong));
    EXPECT_EQ(value, 6);
    EXPECT_OK(communicator.AllocateBuffer(8));
    EXPECT_OK(communicator.Barrier()->Wait(kLong));
  });
}

TEST(HierarchicalCommunicatorTest, AnAllocationThatSomebodyDoesNotComeToEnds) {
  WithRanks([](Communicator& communicator, int) {
    if (communicator.rank() == 3) {
      communicator.Abort();
    } else {
      EXPECT_THAT(communicator.AllocateBuffer(8),
                  StatusIs(StatusCode::kAborted, HasSubstr("rank 3")));
    }
  });
}

TEST(NodeLayoutTest, NodesMayHaveDifferentNumbersOfRanks) {
  const auto layout = NodeLayout::Of({0, 0, 1, 2, 2, 2});
  ASSERT_OK(layout);
  EXPECT_EQ(layout->NodeOf(1), 0);
  EXPECT_EQ(layout->NodeOf(2), 1);
  EXPECT_EQ(layout->NodeOf(5), 2);
  EXPECT_EQ(layout->FirstRank(2), 3);
  EXPECT_EQ(layout->EndRank(2), 6);
  EXPECT_THAT(layout->Sums({1, 2, 3, 4, 5, 6}), ElementsAre(3, 3, 15));
}

TEST(NodeLayoutTest, RanksThatAreNotContiguousAreNamed) {
  EXPECT_THAT(NodeLayout::Of({0, 1, 0}),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("rank 2 is on node 0, rank 1 on node 1")));
}

}  // namespace

}  // namespace cadre::hierarchical
