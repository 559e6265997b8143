#include "worker_runtime/hierarchical/hierarchical_communicator.h"

#include <chrono>
#include <cstdint>
#include <functional>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/in_process_workers.h"

// What all backends have in common is in //worker_runtime/testing:collectives_test.
namespace cadre::hierarchical {
namespace {

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

}  // namespace
}  // namespace cadre::hierarchical
