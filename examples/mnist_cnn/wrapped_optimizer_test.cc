#include "wrapped_optimizer.h"

#include <chrono>
#include <memory>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "net.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre::mnist {
namespace {

constexpr std::chrono::seconds kLong(30);

// Another rank's end is seen in the average. A step that were not counted then would be repeated
// by a training that goes on in its process.
TEST(WrappedOptimizerTest, APartialUpdateWithoutItsAverageIsAStep) {
  testing::OnEachRank(sockets::ConnectSockets, 2, [](Communicator& communicator) {
    const auto net = std::make_shared<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    const auto optimizer =
        MakeWrappedOptimizer("partialUpdate", /*sparsity=*/0, {net, sgd, communicator, kLong});
    ASSERT_OK(optimizer);
    const torch::Tensor before = net->fc2->bias.detach().clone();
    // Not before both ranks have their optimizer. The other may be the first to abort.
    communicator.Barrier()->Wait(kLong).IgnoreError();
    communicator.Abort();
    EXPECT_OK((*optimizer)->Step(net->fc2->bias.sum(), /*own=*/1, /*all=*/2));
    EXPECT_TRUE(torch::allclose(net->fc2->bias, before - 0.1));
    EXPECT_FALSE((*optimizer)->AfterStep().ok());
  });
}

}  // namespace
}  // namespace cadre::mnist
