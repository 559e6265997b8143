#include "split_model.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/utils.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/ranks.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kRanks = 2;

WorkerPlace PlaceOf(int local_rank) {
  WorkerPlace place;
  place.local_rank = local_rank;
  place.local_world_size = kRanks;
  return place;
}

std::string Chosen(const std::string& first, const std::string& second, int local_rank, int gpus) {
  const Result<TwoDevices> chosen = ChooseTwoDevices(first, second, PlaceOf(local_rank), gpus);
  if (!chosen.ok()) return chosen.status().ToString();
  return chosen->first.str() + " " + chosen->second.str();
}

TEST(ChooseTwoDevicesTest, TheTwoGpusOfARankWhereThereAreTwo) {
  EXPECT_EQ(Chosen("", "", 0, 4), "cuda:0 cuda:1");
  EXPECT_EQ(Chosen("", "", 1, 4), "cuda:2 cuda:3");
  EXPECT_EQ(Chosen("cuda", "cuda", 1, 5), "cuda:2 cuda:3");
}

TEST(ChooseTwoDevicesTest, ElseTheHostOrWhatIsNamed) {
  EXPECT_EQ(Chosen("", "", 1, 3), "cpu cpu");
  EXPECT_EQ(Chosen("", "", 0, 0), "cpu cpu");
  EXPECT_EQ(Chosen("cuda:1", "cpu", 0, 2), "cuda:1 cpu");
  EXPECT_THAT(Chosen("cpu", "cuda", 0, 3),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("two GPUs for each of the 2 ranks"),
                    HasSubstr("libtorch finds 3")));
}

// One rank's result after the step.
struct Trained {
  uint64_t hash = 0;
  std::vector<torch::Tensor> parameters;
};

// Each rank has its own samples, and begins with other parameters than rank 0.
std::vector<Trained> Train(bool on_devices) {
  std::vector<Trained> all(kRanks);
  testing::OnEachRank(sockets::ConnectSockets, kRanks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const TwoDevices devices =
        on_devices ? TwoDevices{pretend::Device(2 * rank), pretend::Device(2 * rank + 1)}
                   : TwoDevices{torch::kCPU, torch::kCPU};
    auto net = std::make_shared<SplitModel>(devices);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) {
        const torch::Tensor values = torch::linspace(-1, 1, parameter.numel()) / (rank + 1);
        parameter.copy_(values.view(parameter.sizes()));
      }
    }
    const torch::Tensor inputs = torch::linspace(-2, 1 + rank, 200).view({20, 10});
    const torch::Tensor labels = torch::linspace(1, rank, 100).view({20, 5});
    const Result<uint64_t> hash = TrainOneStep(net, communicator, inputs, labels);
    ASSERT_OK(hash);
    EXPECT_EQ(net->net1->weight.device(), devices.first);
    EXPECT_EQ(net->net1->weight.grad().device(), devices.first);
    EXPECT_EQ(net->net2->weight.device(), devices.second);
    EXPECT_EQ(net->net2->weight.grad().device(), devices.second);
    all[rank].hash = *hash;
    for (const torch::Tensor& parameter : net->parameters()) {
      all[rank].parameters.push_back(parameter.detach().cpu().clone());
    }
  });
  return all;
}

TEST(SplitModelTest, TrainsOnTwoDevicesOfEachRankAsOnTheHost) {
  torch::set_num_threads(1);
  pretend::Install(2 * kRanks);
  const std::vector<Trained> host = Train(/*on_devices=*/false), devices = Train(true);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(devices[rank].hash, host[0].hash);
    ASSERT_THAT(devices[rank].parameters, SizeIs(4));
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(devices[rank].parameters[i].equal(host[rank].parameters[i])) << rank << " " << i;
    }
  }
}

}  // namespace
}  // namespace cadre
