#include "cadre/connect.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "base/status_matchers.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/no_threads.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
const CommunicatorOptions kOptions = {"test", kLong};

class ConnectTest : public ::testing::Test {
 protected:
  ~ConnectTest() override { unsetenv("CADRE_CPU_BACKEND"); }

  // Backends differ in the memory that they share, so every rank writes its part of the shared
  // memory.
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

// The same happens at a container's limit of processes.
//
// Fault (input): A rank may start no thread when it connects -> Its error says what to raise
// (`ulimit -u`, `pids.max`)
TEST_F(ConnectTest, WithoutAThreadItSaysWhatToRaise) {
  for (const int nodes : {1, 2, 4}) {
    testing::InProcessWorkers workers(4, nodes);
    workers.Run([](Worker& worker) {
      // After this all ranks have their threads.
      ASSERT_OK(worker.Barrier("started", kLong));
      std::optional<testing::NoThreads> none;
      if (worker.rank() == 0) none.emplace();
      ASSERT_OK(worker.Barrier("no threads", kLong));
      EXPECT_THAT(ConnectCommunicator(worker, kOptions),
                  StatusIs(StatusCode::kResourceExhausted,
                           AllOf(HasSubstr("cannot start a thread"), HasSubstr("ulimit -u"))));
      ASSERT_OK(worker.Barrier("connected", kLong));
    });
  }
}

// Each member adds a different number, so that a group that joined another would be detected.
void ExpectGroupWorks(testing::InProcessWorkers& workers, const std::vector<int>& ranks) {
  workers.Run([&](Worker& worker) {
    const auto own = std::find(ranks.begin(), ranks.end(), worker.rank());
    if (own == ranks.end()) return;
    auto group = ConnectGroup(worker, ranks, kOptions);
    ASSERT_OK(group);
    EXPECT_EQ((*group)->rank(), own - ranks.begin());
    int64_t mine = worker.rank();
    std::vector<int64_t> all(ranks.size());
    ASSERT_OK(
        (*group)
            ->AllGather({&mine, 1, DataType::kInt64}, {all.data(), all.size(), DataType::kInt64})
            ->Wait(kLong));
    EXPECT_EQ(all, std::vector<int64_t>(ranks.begin(), ranks.end()));
    ASSERT_OK((*group)->Barrier()->Wait(kLong));
  });
}

TEST_F(ConnectTest, GroupsOfOneNode_OfSeveral_InAnyOrder) {
  testing::InProcessWorkers workers(6, 3);
  for (const std::vector<int>& ranks :
       std::vector<std::vector<int>>{{3}, {2, 3}, {1, 2, 3}, {0, 2, 4}, {5, 4, 0}, {0, 2, 1, 3}}) {
    ExpectGroupWorks(workers, ranks);
    ExpectGroupWorks(workers, ranks);  // once more with the same name
  }
}

TEST_F(ConnectTest, GroupsThatMakeNoSense) {
  testing::InProcessWorkers workers(3);
  for (const std::vector<int>& ranks : std::vector<std::vector<int>>{{}, {1, 2}, {0, 0}, {0, 3}}) {
    EXPECT_THAT(ConnectGroup(workers.worker(0), ranks, kOptions),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank")));
  }
  EXPECT_THAT(ConnectGroup(workers.worker(0), std::vector<int>{0, 2},
                           {"late", std::chrono::milliseconds(20)}),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("rank 2 of the world")));
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
