#include "cadre/connect.h"

#include <stdlib.h>

#include <chrono>

#include "base/status_matchers.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
const CommunicatorOptions kOptions = {"test", kLong};

class ConnectTest : public ::testing::Test {
 protected:
  ~ConnectTest() override { unsetenv("CADRE_CPU_BACKEND"); }

  // Which memory a backend shares tells it apart: every rank writes its part of what all see.
  void ExpectWorks(int ranks, int nodes) {
    testing::InProcessWorkers workers(ranks, nodes);
    workers.Run([&](Worker& worker) {
      auto communicator = ConnectCommunicator(worker, kOptions);
      ASSERT_OK(communicator);
      int64_t sum = worker.rank() + 1;
      ASSERT_OK(
          (*communicator)->AllReduce({&sum, 1, DataType::kInt64}, ReduceOp::kSum)->Wait(kLong));
      EXPECT_EQ(sum, ranks * (ranks + 1) / 2);
    });
  }
};

TEST_F(ConnectTest, OneRank_OneNode_SeveralNodes) {
  ExpectWorks(1, 1);
  ExpectWorks(3, 1);
  ExpectWorks(5, 2);
}

TEST_F(ConnectTest, TheEnvironmentMayAskForABackend) {
  setenv("CADRE_CPU_BACKEND", "sockets", 1);
  ExpectWorks(2, 1);
  ExpectWorks(4, 2);
  setenv("CADRE_CPU_BACKEND", "shared_memory", 1);
  ExpectWorks(2, 1);
  testing::InProcessWorkers two_nodes(2, 2);
  EXPECT_THAT(ConnectCommunicator(two_nodes.worker(0), kOptions),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("2 nodes")));
}

TEST_F(ConnectTest, AnotherWordInTheEnvironmentIsAnError) {
  setenv("CADRE_CPU_BACKEND", "infiniband", 1);
  testing::InProcessWorkers workers(2);
  EXPECT_THAT(ConnectCommunicator(workers.worker(0), kOptions),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'infiniband'")));
}

}  // namespace
}  // namespace cadre
