#include "worker_runtime/reduce/ready_order.h"

#include <chrono>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::reduce {
namespace {

using ::testing::ElementsAre;

TEST(AgreeOnReadyOrder, IsRankZerosEverywhere) {
  testing::InProcessWorkers workers(3);
  workers.Run([](Worker& worker) {
    auto communicator = sockets::ConnectSockets(worker, {});
    ASSERT_OK(communicator);
    const std::vector<size_t> ready =
        worker.rank() == 0 ? std::vector<size_t>{3, 1} : std::vector<size_t>{0, 1, 2, 3, 4};
    const auto order = AgreeOnReadyOrder(**communicator, ready, 5, std::chrono::seconds(30));
    ASSERT_OK(order);
    EXPECT_THAT(*order, ElementsAre(3, 1, 4, 2, 0));
  });
}

}  // namespace
}  // namespace cadre::reduce
